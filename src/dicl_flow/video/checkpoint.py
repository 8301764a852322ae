"""What an unfinished run saves on the way, so that the same command resumes it."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, setting_in_words
from ..files import write_files
from ..files.atomic import FolderLock
from .frames import change_marks


@dataclass
class State:
    """The progress of a run."""

    done: int = 0
    """Flows that need not be computed again."""
    missing: int = 0
    """How many of them do not exist because a frame is broken."""
    lost: int = 0
    """Frames that are broken or lost."""
    last_lost: int = -1
    """The number of the last of them."""
    begin: int = 0
    """The first flow to estimate: number `done`, or an earlier one that cuts still show."""
    memory: list[dict[str, float]] = field(default_factory=list)
    """What each writer remembers of earlier flows."""


class Checkpoint:
    """The folder OUTPUT.parts, next to the output, that holds an unfinished run.

    state.json contains the settings of the run and its `State`; frames.json lists the files of the
    frames. `used` returns how many frames a number of flows needs. The folder is locked until the
    `with` block ends. With `remember`, the hidden file .OUTPUT.finished.json next to the output
    holds the same of a finished run.
    """

    def __init__(
        self,
        output: Path,
        settings: Mapping[str, Any],
        *,
        frames: Sequence[Path] = (),
        used: Callable[[int], int] = lambda flows: flows + 1,
        restart: bool = False,
        remember: bool = False,
    ) -> None:
        self._output = output
        output = output.resolve()
        self._record = output.with_name(f".{output.name}.finished.json") if remember else None
        self.finished = False
        """Whether there is nothing left to do."""
        self.folder = output.with_name(f"{output.name}.parts")
        self._path = self.folder / "state.json"
        self._frames_path = self.folder / "frames.json"
        self._frames = {  # a broken link has no change marks
            str(path.absolute()): change_marks(path) if path.exists() else {} for path in frames
        }
        self._settings = json.loads(json.dumps(settings, default=str))
        self._used, self._frames_saved = used, False
        self.state = State()
        self._lock = FolderLock(self.folder)
        strange = any(not path.name.startswith(".") for path in self.folder.glob("*"))
        if strange and not self._path.exists():
            raise InputError(f"{self.folder} is in the way: unfinished runs are stored there")
        if not self._lock.acquire():
            raise InputError(
                f"another run is writing to {self.folder}; wait until it ends, or give another "
                "output"
            )
        try:
            if restart:
                self._clear()
                if self._record:
                    self._record.unlink(missing_ok=True)
            elif self._path.exists():
                self._resume()
            elif self._record and self._record.exists():
                self._recall(self._record)
        except BaseException:
            self.__exit__()
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
        self.state = state
        saved = {"settings": self._settings, **asdict(state)}
        contents = {self._path: json.dumps(saved, indent=1).encode()}
        if self._frames and not self._frames_saved:  # only once: there may be thousands
            contents[self._frames_path] = json.dumps(self._frames).encode()
        write_files(contents)  # which makes a folder that is gone again
        self._frames_saved = True
        self._check_folder()

    def _check_folder(self) -> None:
        """Refuse to go on in another folder than the one that is locked: the parts are lost."""
        if not self._lock.path.exists():
            self._path.unlink(missing_ok=True)
            raise FileNotFoundError(f"cannot write to {self.folder}: the folder is gone")

    def finish(self, written: Sequence[Path]) -> None:
        """Note what was written, if the run is to be remembered, and remove the folder."""
        if self._record:
            record = {"settings": self._settings, **asdict(self.state), "frames": self._frames}
            record["written"] = {str(path.resolve()): _contents(path) for path in written}
            write_files({self._record: json.dumps(record).encode()})
        self.remove()

    def remove(self) -> None:
        """Remove the folder: nothing is left to do."""
        self._clear()
        self._lock.remove()

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
        with _undamaged(self._path) as saved:
            settings = dict(saved.pop("settings")) if saved else {}
            self.state = State(**saved)
        if not saved:  # killed while it was removed
            return self._clear()
        self._compare(settings, f"{self.folder} holds an unfinished run")
        if self._frames and self.done:
            with _undamaged(self._frames_path) as frames:
                before: dict[str, Any] = dict(frames)
            self._compare_frames(before, f"{self.folder} holds an unfinished run")

    def _recall(self, record: Path) -> None:
        """Find out whether this is the run that made the output, if that is still as it was."""
        with _undamaged(record) as saved:
            settings, frames, written = (
                dict(saved.pop(name)) for name in ("settings", "frames", "written")
            )
            state = State(**saved)
        if any(_contents(Path(path)) != before for path, before in written.items()):
            return
        self.state = state
        self._compare(settings, f"{self._output} is the result of a finished run")
        self._compare_frames(frames, f"{self._output} is the result of a finished run")
        self.finished = True

    def _compare(self, settings: dict[str, Any], what: str) -> None:
        """Refuse other settings than those of `what`."""
        changes = [
            _change(key, settings.get(key), self._settings.get(key))
            for key in {**settings, **self._settings}
            if settings.get(key) != self._settings.get(key)
        ]
        if changes:
            raise InputError(
                f"{what} with other settings: {', '.join(changes)}; use the same settings"
                f", or start again with `restart=True`"
            )

    def _compare_frames(self, before: dict[str, Any], what: str) -> None:
        """Refuse other frames; a frame without a flow so far may have been repaired."""
        used = list(before)[: self._used(self.done)]
        counts = {
            "added": sum(name not in before for name in self._frames),
            "changed": sum(before[name] != self._frames.get(name, before[name]) for name in used),
            "gone": sum(name not in self._frames for name in before),
        }
        changes = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
        if changes:
            raise InputError(
                f"{what} of other frames ({changes} since); restore them, or "
                "start again with `restart=True`"
            )


def _contents(path: Path) -> dict[str, object]:
    """Marks of an output that differ if it has changed; of a folder, the number of its files."""
    if path.is_dir():
        return {"files": sum(1 for _ in path.iterdir())}
    return change_marks(path) if path.exists() else {}


@contextmanager
def _undamaged(path: Path) -> Iterator[Any]:
    """Yield what a file of a checkpoint contains; refuse it if that cannot be used."""
    try:
        yield json.loads(path.read_text())
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is damaged; start again with `restart=True`") from None


def _change(setting: str, before: Any, now: Any) -> str:
    """Describe how a setting differs: "stride was 1 and is 2 now"."""
    name = setting.replace("_", " ")
    paths = [value.get("path") if isinstance(value, dict) else value for value in (before, now)]
    if paths[0] == paths[1]:  # of files, whose stamps differ
        return f"{name} ({paths[1]}) changed since"
    return "{} was {} and is {} now".format(name, *map(setting_in_words, paths))
