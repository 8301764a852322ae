"""A row of numbers for each flow."""

import csv
from collections.abc import Sequence
from io import StringIO
from math import atan2, degrees
from pathlib import Path

import cv2
import numpy as np

from ..files import naming, write_files
from ..inputs import Array
from ..visualize import flow_statistics, known_flow
from ..warping import warp
from .flows import FrameFlow
from .writers import Writer

COLUMNS = (
    "frame",
    "time",
    "known",
    "mean_length",
    "median_length",
    "p95_length",
    "max_length",
    "direction",
    "moving_share",
    "mean_confidence",
    "occluded",
    "scene_cut",
    "problem",
)
_MOVING = 0.5  # px
_SMALL = 96  # px, the longer side of the pictures that are compared for cuts
_CUT = 0.5  # of the contrast unexplained: 0.05 to 0.25 within scenes, 0.8 and more between them


def describe(flow: FrameFlow) -> dict[str, object]:
    """Motion in px, its direction in degrees (0 right, 90 down), how sure it is, cut or not.

    Motion is that of the known pixels. A cut is judged by the whole flow: it is just there
    that no flow is sure.
    """
    row: dict[str, object] = {"frame": flow.frame.number, "problem": flow.problem}
    if flow.frame.time is not None:
        row["time"] = f"{flow.frame.time:.4f}"
    if flow.problem:
        return row
    numbers = _motion(flow.result.flow)
    numbers["mean_confidence"] = float(flow.result.confidence.mean())
    if flow.result.occlusion is not None:
        numbers["occluded"] = float(flow.result.occlusion.mean())
    cut = int(unexplained(*flow.images, flow.whole.flow) > _CUT)
    return {**row, **{name: f"{value:.5g}" for name, value in numbers.items()}, "scene_cut": cut}


def _motion(flow: Array) -> dict[str, float]:
    known = known_flow(flow)
    if not known.any():
        return {"known": 0.0}
    found = flow_statistics(flow)
    numbers = {name: value for name, value in found.items() if name in COLUMNS}
    numbers["direction"] = degrees(atan2(found["mean_y"], found["mean_x"]))
    lengths = np.hypot(flow[..., 0], flow[..., 1])
    numbers["moving_share"] = float((lengths[known] > _MOVING).mean())
    return numbers


def unexplained(image1: Array, image2: Array, flow: Array) -> float:
    """How far frame 2, pulled back along the flow, is from frame 1, over the contrast of frame 1.

    Seen small and in grey, where noise and fine texture do not matter.
    """
    height, width = flow.shape[:2]
    scale = min(1.0, _SMALL / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    first, second, vectors = (
        cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        for picture in (*(cv2.cvtColor(i, cv2.COLOR_RGB2GRAY) for i in (image1, image2)), flow)
    )
    again, inside = np.moveaxis(
        warp(np.dstack([second, np.ones_like(second)]), vectors * scale), 2, 0
    )
    seen = inside > 0.999
    if not seen.any():
        return float("inf")
    contrast = np.abs(first - np.median(first)).mean() + 1  # a level of grey, for blank frames
    return float(np.abs(first - again)[seen].mean() / contrast)


class StatisticsTable(Writer):
    """A CSV file with one row for each flow."""

    def __init__(self, output: Path, parts: Path) -> None:
        super().__init__()
        self.output, self._part, self._rows = output, parts / "statistics.csv", ""

    def resume(self, done: int) -> None:
        """Keep the header and `done` rows."""
        lines = self._part.read_text().splitlines(keepends=True) if done else [_line(COLUMNS)]
        self._part.write_text("".join(lines[: done + 1]))

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Add a row."""
        row = describe(flow)
        self._rows += _line([row.get(column, "") for column in COLUMNS])

    def commit(self) -> None:
        """Append the rows."""
        with naming(self.output), self._part.open("a") as file:
            file.write(self._rows)
        self._rows = ""

    def finish(self) -> Path:
        """Put the table in its place."""
        write_files({self.output: self._part.read_bytes()})
        return self.output


def _line(values: Sequence[object]) -> str:
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()
