"""Writers of flows: files, an array that grows, a table of statistics."""

import csv
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from io import BytesIO
from math import atan2, degrees
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ..errors import InputError
from ..estimation.result import FlowResult
from ..files import Array, encode_flow, encode_image, naming, replacing, write_files
from ..pictures.visualize import confidence_to_grey, flow_statistics, known_flow
from .flows import FrameFlow

Prepared: TypeAlias = Array | Callable[[], Array]
"""An array to write, or a function that waits until it has arrived from the device."""

_BACKWARD, _OCCLUSION = "_backward", "_occlusion"  # suffixes of a frame's name


class Writer:
    """Takes flows in order, and commits them in pieces of `piece` flows, in the writing thread."""

    piece = 1

    def __init__(self) -> None:
        self.memory: dict[str, float] = {}
        """What it remembers of earlier flows; restored when a run is resumed."""
        self.done = 0
        """How many flows were written, those of earlier runs included; `run` counts."""

    def resume(self, done: int) -> None:
        """Prepare for flow number `done`; remove output of it and of later ones."""

    def prepare(self, flow: FrameFlow) -> Prepared:
        """Return the array to write, (H, W, 2); called in the estimating thread, for torch."""
        return flow.result.flow

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write the prepared array of the next flow; None if a frame is broken."""
        raise NotImplementedError

    def commit(self) -> "Future[None] | None":
        """Make what was written survive a kill; returns a future if this takes time."""
        return None

    def stop(self) -> None:
        """Abandon what is not committed: the run ends early."""

    def finish(self) -> Path:
        """Move the output to its destination, and return that."""
        raise NotImplementedError


class FolderWriter(Writer):
    """A folder of files, each written whole or not at all; `parts` are patterns of their parts."""

    def __init__(self, folder: Path, *parts: str) -> None:
        super().__init__()
        self.folder, self._parts, self._has_folder = folder, parts, False

    def resume(self, done: int) -> None:
        """Remove partly written files of a killed run."""
        self._has_folder = done > 0
        for pattern in self._parts:
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def make_folder(self) -> None:
        """Create the folder, but only once: one that is lost takes files with it."""
        if not self._has_folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._has_folder = True

    def finish(self) -> Path:
        """Return the folder; everything has been written."""
        return self.folder


class FlowFiles(FolderWriter):
    """A folder with a flow file for each frame, NAME; also NAME_backward, NAME_occlusion.png."""

    def __init__(
        self, folder: Path, suffix: str, *, backward: bool = False, occlusion: bool = False
    ) -> None:
        super().__init__(folder, f".*{suffix}.*", f".*{_OCCLUSION}.png.*")
        self.suffix, self.backward, self.occlusion = suffix, backward, occlusion

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write the files of a flow; none if a frame is broken."""
        self.make_folder()
        if prepared is not None:
            write_files(self._contents(flow.frame.name, flow.result))

    def _contents(self, name: str, result: FlowResult) -> dict[Path, bytes]:
        taken = [_BACKWARD] * self.backward + [_OCCLUSION] * self.occlusion
        if name.endswith(tuple(taken)):
            raise InputError(
                f"frame {name}: its flow file would be taken for another frame's; rename the frame"
            )
        ways = {"": result, **({_BACKWARD: result.backward} if self.backward else {})}
        files = {self.folder / f"{name}{end}{self.suffix}": way for end, way in ways.items()}
        contents = {path: encode_flow(path, way.flow) for path, way in files.items() if way}
        if self.occlusion:
            path = self.folder / f"{name}{_OCCLUSION}.png"
            contents[path] = encode_image(path, confidence_to_grey(np.asarray(result.occlusion)))
        return contents


def check_one_size(what: str, size: Sequence[float], first: Sequence[float]) -> None:
    """Refuse (height, width) of another size than the first."""
    if tuple(size) != tuple(first):
        now, before = (f"{width:.0f}x{height:.0f}" for height, width in (size, first))
        raise InputError(
            f"all {what} must have one size; this is {now} after {before}; write a folder"
        )


def refuse_one_name(frames: Sequence[Path], suffix: str) -> None:
    """Refuse frames whose flows would have the same file name: f0.jpg and f0.png."""
    known: dict[str, Path] = {}
    for frame in frames[:-1]:  # the last one has no flow
        other = known.setdefault(frame.stem, frame)
        if other is not frame:
            raise InputError(
                f"the flows of {other} and {frame} would be one file, {frame.stem}{suffix}; select "
                "frames by a pattern such as 'frames/*.png', or rename one"
            )


class FlowStack(Writer):
    """One .npy file (T, H, W, 2) float32 that grows; unknown (NaN) if a frame is broken.

    With `backward` (T, 2, H, W, 2): [t, 0] is the forward flow, [t, 1] the backward flow.
    numpy leaves room in the header for a longer first axis: it is updated in place.
    """

    def __init__(self, output: Path, parts: Path, *, backward: bool = False) -> None:
        super().__init__()
        self.output, self._part, self.backward = output, parts / "stack.npy", backward

    def resume(self, done: int) -> None:
        """Cut the file after `done` flows."""
        if not self.memory:  # the size is not known yet
            self._part.unlink(missing_ok=True)
        elif self._part.exists():
            os.truncate(self._part, len(self._header(done)) + done * 4 * int(np.prod(self._shape)))
        else:
            raise InputError(f"{self._part} is missing; start again with `restart=True`")

    def prepare(self, flow: FrameFlow) -> Array:
        """(H, W, 2), or in both directions (2, H, W, 2)."""
        if not self.backward:
            return flow.result.flow
        assert flow.result.backward is not None
        return np.stack([flow.result.flow, flow.result.backward.flow])

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Append a flow."""
        if prepared is not None and not self.memory:
            height, width = prepared.shape[-3:-1]
            self.memory.update(stack_height=height, stack_width=width)
            with naming(self.output):
                self._part.write_bytes(self._header(0))
            for _ in range(self.done):
                self._append(np.full(self._shape, np.nan))
        if prepared is not None:
            check_one_size("flows of an array", prepared.shape[-3:-1], self._shape[-3:-1])
        if self.memory:
            self._append(np.full(self._shape, np.nan) if prepared is None else prepared)

    def commit(self) -> None:
        """Update the header, so that the appended flows belong to the array."""
        if self.memory:
            with naming(self.output), self._part.open("r+b") as file:
                file.write(self._header(self.done))

    def finish(self) -> Path:
        """Link the file to its destination; killed before all writers are done, it is needed."""
        with replacing(self.output) as temporary:
            temporary.unlink()
            try:
                os.link(self._part, temporary)
            except OSError:  # another disk, or one without links
                shutil.copyfile(self._part, temporary)
        return self.output

    @property
    def _shape(self) -> tuple[int, ...]:
        size = int(self.memory["stack_height"]), int(self.memory["stack_width"])
        return (2, *size, 2) if self.backward else (*size, 2)

    def _append(self, array: Array) -> None:
        with naming(self.output), self._part.open("r+b") as file:  # which "ab" would create
            file.seek(0, os.SEEK_END)
            file.write(array.astype("<f4").tobytes())

    def _header(self, count: int) -> bytes:
        buffer = BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, *self._shape)}
        np.lib.format.write_array_header_1_0(buffer, about)
        return buffer.getvalue()


COLUMNS = ["frame", "time", "known", "mean_length", "median_length", "p95_length", "max_length"]
COLUMNS += ["direction", "moving_share", "mean_confidence", "occluded", "scene_cut", "problem"]
_MOVING = 0.5  # px


def describe(flow: FrameFlow) -> dict[str, object]:
    """Motion of the known pixels in px, direction in degrees (0 right, 90 down), confidence etc."""
    row: dict[str, object] = {"frame": flow.frame.number, "problem": flow.problem}
    if flow.frame.time is not None:
        row["time"] = f"{flow.frame.time:.4f}"
    if flow.problem:
        return row
    motion = flow.result.flow
    known = known_flow(motion)
    numbers = {"known": 0.0}
    if known.any():
        found = flow_statistics(motion)
        numbers = {name: value for name, value in found.items() if name in COLUMNS}
        numbers["direction"] = degrees(atan2(found["mean_y"], found["mean_x"]))
        lengths = np.hypot(motion[..., 0], motion[..., 1])
        numbers["moving_share"] = float((lengths[known] > _MOVING).mean())
    numbers["mean_confidence"] = float(flow.result.confidence.mean())
    if flow.result.occlusion is not None:
        numbers["occluded"] = float(flow.result.occlusion.mean())
    row["scene_cut"] = int(flow.is_cut)
    return {**row, **{name: f"{value:.5g}" for name, value in numbers.items()}}


class StatisticsTable(Writer):
    """A CSV file with one row for each flow."""

    def __init__(self, output: Path, parts: Path) -> None:
        super().__init__()
        self.output, self._part = output, parts / "statistics.csv"
        self._rows: list[dict[str, object]] = []

    def resume(self, done: int) -> None:
        """Keep the header and `done` rows."""
        header = [",".join(COLUMNS) + "\n"]
        lines = self._part.read_text().splitlines(keepends=True) if done else header
        write_files({self._part: "".join(lines[: done + 1]).encode()})

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Add a row."""
        self._rows.append(describe(flow))

    def commit(self) -> None:
        """Append the rows."""
        with naming(self.output), self._part.open("a") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(self._rows)
        self._rows.clear()

    def finish(self) -> Path:
        """Write the table to its destination."""
        write_files({self.output: self._part.read_bytes()})
        return self.output
