"""What is made of each flow: one class for each kind of output."""

import os
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..files import encode_flow, replacing, write_files
from ..inputs import Array
from .flows import FrameFlow


class Writer:
    """Takes flows in their order, and makes them safe in pieces of `piece` flows.

    `prepare` runs in the thread of the estimate and may compute with torch; all else runs
    behind it, see `threads`.
    """

    piece = 1

    def __init__(self) -> None:
        self.memory: dict[str, float] = {}
        """What it has to know of earlier flows; comes back when a run goes on."""

    def resume(self, done: int) -> None:
        """Get ready for flow number `done`; whatever is there of it or of later ones goes."""

    def prepare(self, flow: FrameFlow) -> Array:
        """Make of a flow the array that is to be written: (H, W, 2)."""
        return flow.result.flow

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Take what was prepared of the next flow; None where a frame is broken."""
        raise NotImplementedError

    def commit(self) -> None:
        """Make safe what was written."""

    def finish(self) -> Path:
        """Put the output in its place."""
        raise NotImplementedError


class FlowFiles(Writer):
    """A folder with a file for each flow, named after its first frame."""

    def __init__(self, folder: Path, suffix: str) -> None:
        super().__init__()
        self.folder, self.suffix = folder, suffix

    def resume(self, done: int) -> None:
        """Remove what a kill left of a file."""
        for path in self.folder.glob(f".*{self.suffix}.*"):
            path.unlink()

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write a file; none where a frame is broken."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if prepared is not None:
            path = self.folder / f"{flow.frame.name}{self.suffix}"
            write_files({path: encode_flow(path, prepared)})

    def finish(self) -> Path:
        """Everything is there already."""
        return self.folder


class FlowStack(Writer):
    """One .npy file (T, H, W, 2) float32 that grows; unknown (NaN) where a frame is broken.

    numpy leaves room in the header for a longer first axis, so that it can be written anew
    in place when a flow was added.
    """

    def __init__(self, output: Path, parts: Path) -> None:
        super().__init__()
        self.output, self._part, self._count = output, parts / "stack.npy", 0

    def resume(self, done: int) -> None:
        """Cut the file after `done` flows."""
        self._count = done
        if not self.memory:  # no flow has told the size yet
            self._part.unlink(missing_ok=True)
        elif self._part.exists():
            os.truncate(self._part, len(self._header(done)) + done * 4 * int(np.prod(self._shape)))
        else:
            raise InputError(f"{self._part} is missing; begin anew with --restart")

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Append a flow."""
        self._count += 1
        if prepared is not None and not self.memory:
            height, width = prepared.shape[:2]
            self.memory.update(stack_height=height, stack_width=width)
            self._part.write_bytes(self._header(0))
            for _ in range(self._count - 1):
                self._append(np.full(self._shape, np.nan))
        if self.memory:
            self._append(np.full(self._shape, np.nan) if prepared is None else prepared)

    def commit(self) -> None:
        """Write the header anew: what came behind is a part of the array from now on."""
        if self.memory:
            with self._part.open("r+b") as file:
                file.write(self._header(self._count))

    def finish(self) -> Path:
        """Give the file its name."""
        with replacing(self.output) as temporary:
            shutil.move(self._part, temporary)
        return self.output

    @property
    def _shape(self) -> tuple[int, int, int]:
        return int(self.memory["stack_height"]), int(self.memory["stack_width"]), 2

    def _append(self, array: Array) -> None:
        with self._part.open("ab") as file:
            file.write(array.astype("<f4").tobytes())

    def _header(self, count: int) -> bytes:
        buffer = BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, *self._shape)}
        np.lib.format.write_array_header_1_0(buffer, about)
        return buffer.getvalue()
