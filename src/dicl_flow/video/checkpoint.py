"""How far a run has come, so that the same command goes on there."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_files
from .lock import FolderLock
from .sources import stamp

Settings = Mapping[str, Any]


class Checkpoint:
    """A folder beside the output, OUTPUT.parts, that holds what is not finished.

    Its file state.json says with which settings the run began, how many flows are safe, and
    what its writers remember; frames.json, which files the frames were. The folder is locked for
    other runs until the block is left.
    """

    def __init__(
        self,
        output: Path,
        settings: Settings,
        *,
        frames: Sequence[Path] = (),
        restart: bool = False,
    ) -> None:
        output = output.resolve()
        self.folder = output.with_name(f"{output.name}.parts")
        self._path = self.folder / "state.json"
        self._frames, self._frames_path = stamps(frames), self.folder / "frames.json"
        self._settings = json.loads(json.dumps(settings, default=str))
        self._frames_saved = False
        self.done = 0
        self.memory: list[dict[str, float]] = []
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
            self._lock.remove()  # nothing was begun

    def save(self, done: int, memory: list[dict[str, float]]) -> None:
        """Note that the first `done` flows need not be computed again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.done, self.memory = done, memory
        state = {"settings": self._settings, "done": done, "memory": self.memory}
        contents = {self._path: json.dumps(state, indent=1).encode()}
        if self._frames and not self._frames_saved:  # once: there may be many thousands
            contents[self._frames_path] = json.dumps(self._frames).encode()
        write_files(contents)
        self._frames_saved = True

    def remove(self) -> None:
        """Forget the run: it is finished."""
        self._clear()
        self._lock.remove()

    def _take(self) -> None:
        """Lock the folder, if it is one of ours."""
        strange = any(not path.name.startswith(".") for path in self.folder.glob("*"))
        if strange and not self._path.exists():
            raise InputError(f"{self.folder} is in the way: unfinished runs are kept there")
        if not self._lock.acquire():
            raise InputError(
                f"another run is writing to {self.folder} just now; wait for its end, or give "
                "another output"
            )

    def _clear(self) -> None:
        """Remove all but the lock; the state last, as long as it is there the folder is ours."""
        for path in sorted(self.folder.iterdir(), key=self._path.__eq__):
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self._lock.path:
                path.unlink()

    def _resume(self) -> None:
        try:
            state = json.loads(self._path.read_text())
            settings, self.done, self.memory = state["settings"], state["done"], state["memory"]
        except (ValueError, KeyError, TypeError):
            raise self._damage(self._path) from None
        for key in {**settings, **self._settings}:
            before, now = settings.get(key), self._settings.get(key)
            if before != now:
                raise InputError(
                    f"{self.folder} holds an unfinished run with another {key} ({before}, now "
                    f"{now}); use the same settings, or begin anew with `restart=True`"
                )

    def _check_frames(self) -> None:
        """Refuse other frames; one that has no flow yet may have been mended."""
        if not (self._frames and self.done):
            return
        before = self._frames_before()
        used = list(before)[: self.done + 1]
        counts = {
            "added": sum(name not in before for name in self._frames),
            "changed": sum(before[name] != self._frames.get(name, before[name]) for name in used),
            "gone": sum(name not in self._frames for name in before),
        }
        changes = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
        if changes:
            raise InputError(
                f"{self.folder} holds an unfinished run of other frames ({changes} since); put "
                "them back as they were, or begin anew with `restart=True`"
            )

    def _frames_before(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._frames_path.read_text()))
        except (OSError, ValueError, TypeError):
            raise self._damage(self._frames_path) from None

    @staticmethod
    def _damage(path: Path) -> InputError:
        return InputError(f"{path} is damaged; begin anew with `restart=True`")


def stamps(files: Sequence[Path]) -> dict[str, list[object]]:
    """What changes when a file changes, by its path; nothing of a link that leads nowhere."""
    return {str(file.absolute()): stamp(file)[1:] if file.exists() else [] for file in files}
