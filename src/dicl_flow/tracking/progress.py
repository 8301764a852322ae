"""What a run of a tracker saves on the way: how far it is, positions, what the tracker knows.

Positions are appended to a file for each direction in time.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import numpy as np

from ..errors import InputError
from ..files import Array, decode_npy, encode_npy, naming, write_files
from ..video import Frame, State

EVERY = 5.0
"""Seconds between two saves; more if saving takes long."""
_SAVING = 0.05  # share of the time that saving may take
_LARGE = 1 << 20  # bytes of an array from which its rows are saved one by one
FORWARD, BACKWARD, DRAWING = 0, 1, 2
STAGES = ("forward", "backward", "drawing")


class Trail:
    """The positions of P points in the frames of one direction, in a file that grows."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        frame = [("time", "<f8"), ("cut", "?"), ("lost", "?")]
        numbers = [("points", "<f4", (count, 2)), ("error", "<f4", (count,))]
        choices = [("visible", "?", (count,)), ("interval", "<i2", (count,))]
        self.kind = np.dtype([*frame, *numbers, *choices])

    def resume(self, done: int) -> None:
        """Keep the positions in the first `done` frames only."""
        length = done * self.kind.itemsize
        if done and not (self.path.exists() and self.path.stat().st_size >= length):
            raise InputError(f"{self.path} is damaged; start again with `restart=True`")
        with naming(self.path), self.path.open("ab") as file:
            file.truncate(length)

    def blank(self, frame: Frame) -> Array:
        """The record of a frame in which no point has a position."""
        record = np.zeros((), self.kind)
        record["time"] = np.nan if frame.time is None else frame.time
        record["lost"] = frame.image is None
        record["points"], record["error"] = np.nan, np.nan
        return record

    def add(self, record: Array) -> None:
        """Append the positions in a frame."""
        with naming(self.path), self.path.open("ab") as file:
            file.write(record.tobytes())

    def read(self) -> Array:
        """(T,) records."""
        return np.fromfile(self.path, self.kind)


class Memory:
    """What a tracker knows, in files: those of positions in earlier frames are written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, state: dict[str, Array], needs: Sequence[int]) -> None:
        """Save a state under a name; earlier ones stay until `forget_others`."""
        files: dict[str, str | list[str]] = {}
        for key, array in state.items():
            is_large = array.ndim > 1 and array.nbytes > _LARGE
            files[key] = [*map(self._put, array)] if is_large else self._put(array)
        index = json.dumps({"files": files, "needs": [*map(int, needs)]})
        write_files({self.folder / f"{name}.json": index.encode()})

    def load(self, name: str) -> tuple[dict[str, Array], list[int]]:
        """Return a saved state, and the places of frames that are needed with it."""
        index = self.folder / f"{name}.json"
        try:
            saved = json.loads(index.read_text())
            state = {key: self._get(files) for key, files in saved["files"].items()}
            return state, list(saved["needs"])
        except (OSError, ValueError, KeyError):
            raise InputError(f"{index} is damaged; start again with `restart=True`") from None

    def forget_others(self, name: str) -> None:
        """Remove all that does not belong to the state of this name."""
        index = self.folder / f"{name}.json"
        used = {index.name}
        for files in json.loads(index.read_text())["files"].values():
            used |= {files} if isinstance(files, str) else {*files}
        for path in self.folder.iterdir():
            if path.name not in used and not path.name.startswith("."):
                path.unlink()

    def _put(self, array: Array) -> str:
        """Write an array, unless a file has the same content; return the file's name."""
        data = encode_npy(np.asarray(array))
        path = self.folder / f"{sha256(data).hexdigest()[:24]}.npy"
        if not path.exists():
            write_files({path: data})
        return path.name

    def _get(self, files: str | list[str]) -> Array:
        if isinstance(files, list):
            return np.stack([*map(self._get, files)])
        return decode_npy((self.folder / files).read_bytes()).copy()


class Progress:
    """How far one direction is, and whether it is time to save that."""

    def __init__(self, stage: int, state: State) -> None:
        self.stage, self.state = stage, replace(state)
        self.steps = int(state.memory[0]["steps"])
        self.new = False
        self._due = perf_counter() + EVERY

    def count(self, frame: Frame) -> None:
        """Note a frame that was pushed, or is lost."""
        self.steps, self.new = self.steps + 1, True
        self.state.done += 1
        self.state.lost += frame.image is None and self.stage == FORWARD
        self.state.memory = [{"stage": self.stage, "steps": self.steps}]

    @property
    def name(self) -> str:
        """Of what the tracker knows by now."""
        return f"{STAGES[self.stage]}_{self.steps}"

    @property
    def is_due(self) -> bool:
        """Whether to save now."""
        return self.new and perf_counter() >= self._due

    def saved(self, seconds: float) -> None:
        """Note that it was saved, and how long that took."""
        self.new = False
        self._due = perf_counter() + max(EVERY, seconds / _SAVING)
