"""The progress of a run, saved so that the same command resumes it."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_files
from ..files.atomic import FolderLock
from .sources import change_marks

Settings = Mapping[str, Any]


@dataclass
class State:
    """The progress of a run."""

    done: int = 0
    """Flows that need not be computed again."""
    missing: int = 0
    """How many of them do not exist because a frame is broken."""
    begin: int = 0
    """The first flow to estimate: number `done`, or an earlier one that cuts still show."""
    memory: list[dict[str, float]] = field(default_factory=list)
    """What each writer remembers of earlier flows."""


class Checkpoint:
    """The folder OUTPUT.parts, next to the output, that holds an unfinished run.

    state.json contains the settings of the run and its `State`; frames.json lists the files of the
    frames. `used` returns how many frames a number of flows needs. The folder is locked until the
    `with` block ends.
    """

    def __init__(
        self,
        output: Path,
        settings: Settings,
        *,
        frames: Sequence[Path] = (),
        used: Callable[[int], int] = lambda flows: flows + 1,
        restart: bool = False,
    ) -> None:
        output = output.resolve()
        self.folder = output.with_name(f"{output.name}.parts")
        self._path = self.folder / "state.json"
        self._frames, self._frames_path = stamps(frames), self.folder / "frames.json"
        self._settings = json.loads(json.dumps(settings, default=str))
        self._used, self._frames_saved = used, False
        self.state = State()
        self._lock = FolderLock(self.folder)
        self._take()
        try:
            if restart:
                self._clear()
            elif self._path.exists():
                self._resume()
                self._check_frames()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *error: object) -> None:
        if self._path.exists():
            self._lock.release()
        else:
            self._lock.remove()  # nothing was saved

    @property
    def done(self) -> int:
        """How many flows need not be computed again."""
        return self.state.done

    def save(self, state: State) -> None:
        """Save the progress of the run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = state
        saved = {"settings": self._settings, **asdict(state)}
        contents = {self._path: json.dumps(saved, indent=1).encode()}
        if self._frames and not self._frames_saved:  # only once: there may be thousands
            contents[self._frames_path] = json.dumps(self._frames).encode()
        write_files(contents)
        self._frames_saved = True

    def remove(self) -> None:
        """Remove the folder: the run is finished."""
        self._clear()
        self._lock.remove()

    def _take(self) -> None:
        """Lock the folder, unless it is not a checkpoint."""
        strange = any(not path.name.startswith(".") for path in self.folder.glob("*"))
        if strange and not self._path.exists():
            raise InputError(f"{self.folder} is in the way: unfinished runs are stored there")
        if not self._lock.acquire():
            raise InputError(
                f"another run is writing to {self.folder}; wait until it ends, or give another "
                "output"
            )

    def _clear(self) -> None:
        """Remove all but the lock; the state last, because it marks the folder as a checkpoint.

        Until then it is empty: killed in between, the run must not be resumed with what is left.
        """
        if self._path.exists():
            write_files({self._path: b"{}"})
        for path in sorted(self.folder.iterdir(), key=self._path.__eq__):
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self._lock.path:
                path.unlink()

    def _resume(self) -> None:
        try:
            saved = json.loads(self._path.read_text())
            if saved == {}:  # killed while it was removed
                return self._clear()
            settings = dict(saved.pop("settings"))
            self.state = State(**saved)
        except (ValueError, KeyError, TypeError):
            raise self._damage(self._path) from None
        changes = [
            _change(key, settings.get(key), self._settings.get(key))
            for key in {**settings, **self._settings}
            if settings.get(key) != self._settings.get(key)
        ]
        if changes:
            raise InputError(
                f"{self.folder} holds an unfinished run with other settings: "
                f"{', '.join(changes)}; use the same settings, or start again with `restart=True`"
            )

    def _check_frames(self) -> None:
        """Refuse other frames; a frame without a flow so far may have been repaired."""
        if not (self._frames and self.done):
            return
        before = self._frames_before()
        used = list(before)[: self._used(self.done)]
        counts = {
            "added": sum(name not in before for name in self._frames),
            "changed": sum(before[name] != self._frames.get(name, before[name]) for name in used),
            "gone": sum(name not in self._frames for name in before),
        }
        changes = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
        if changes:
            raise InputError(
                f"{self.folder} holds an unfinished run of other frames ({changes} since); "
                "restore them, or start again with `restart=True`"
            )

    def _frames_before(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._frames_path.read_text()))
        except (OSError, ValueError, TypeError):
            raise self._damage(self._frames_path) from None

    @staticmethod
    def _damage(path: Path) -> InputError:
        return InputError(f"{path} is damaged; start again with `restart=True`")


def stamps(files: Sequence[Path]) -> dict[str, dict[str, object]]:
    """The change marks of files by path; empty for a broken link."""
    return {str(file.absolute()): change_marks(file) if file.exists() else {} for file in files}


def _change(setting: str, before: Any, now: Any) -> str:
    """Describe how a setting differs: "stride was 1 and is 2 now"."""
    name = setting.replace("_", " ")
    if isinstance(before, dict) and isinstance(now, dict):  # the stamps of a file
        before, now = before.get("path"), now.get("path")
        if before == now:
            return f"{name} ({now}) changed since"
    return f"{name} was {_word(before)} and is {_word(now)} now"


def _word(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
