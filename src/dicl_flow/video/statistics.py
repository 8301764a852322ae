"""Statistics of each flow, as a CSV table."""

import csv
from collections.abc import Sequence
from io import StringIO
from math import atan2, degrees
from pathlib import Path

import numpy as np

from ..files import Array, naming, write_files
from ..pictures.visualize import flow_statistics, known_flow
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


def describe(flow: FrameFlow) -> dict[str, object]:
    """Motion of the known pixels in px, direction in degrees (0 right, 90 down), confidence etc."""
    row: dict[str, object] = {"frame": flow.frame.number, "problem": flow.problem}
    if flow.frame.time is not None:
        row["time"] = f"{flow.frame.time:.4f}"
    if flow.problem:
        return row
    numbers = _motion(flow.result.flow)
    numbers["mean_confidence"] = float(flow.result.confidence.mean())
    if flow.result.occlusion is not None:
        numbers["occluded"] = float(flow.result.occlusion.mean())
    row["scene_cut"] = int(flow.is_cut)
    return {**row, **{name: f"{value:.5g}" for name, value in numbers.items()}}


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


class StatisticsTable(Writer):
    """A CSV file with one row for each flow."""

    def __init__(self, output: Path, parts: Path) -> None:
        super().__init__()
        self.output, self._part, self._rows = output, parts / "statistics.csv", ""

    def resume(self, done: int) -> None:
        """Keep the header and `done` rows."""
        lines = self._part.read_text().splitlines(keepends=True) if done else [_line(COLUMNS)]
        write_files({self._part: "".join(lines[: done + 1]).encode()})

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
        """Write the table to its destination."""
        write_files({self.output: self._part.read_bytes()})
        return self.output


def _line(values: Sequence[object]) -> str:
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()
