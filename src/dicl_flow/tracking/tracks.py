"""What a track is: where a point of one frame is in the others, visible or not, and how surely.

Tracks are written as .npz, in TAP-Vid's layout, or as .csv; points are read from a .csv file.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..errors import InputError, refusing
from ..files import (
    Array,
    decode_arrays,
    encode_arrays,
    read_bytes,
    replacing,
    write_files,
)
from ..files.reading import most_bytes
from ..ops import Size


@dataclass(frozen=True)
class Reference:
    """Points of one frame that are to be followed: some, or every pixel."""

    frame: int
    """The number of the frame, counted from 0."""
    points: Array
    """(P, 2) float32: x, y in px; the centre of the first pixel is 0, 0."""


class Positions(NamedTuple):
    """Where the P points of a reference are in one frame; on the device."""

    points: Tensor
    """(P, 2) float32: x, y in px; a hidden point is where it is thought to be."""
    error: Tensor
    """(P,) float32: the expected error of the position, in px."""
    visible: Tensor
    """(P,) bool."""
    interval: Tensor
    """(P,) int16: how many frames back the chain's last flow began; 0 in the reference itself."""


@dataclass(frozen=True)
class Tracks:
    """N points in T frames; NaN where a track does not exist, as beyond a cut."""

    points: Array
    """(N, T, 2) float32: x, y in px."""
    visible: Array
    """(N, T) bool."""
    error: Array
    """(N, T) float32: expected error in px."""
    interval: Array
    """(N, T) int16: how many frames the last flow of the chain spans; below 0, if back in time."""
    queries: Array
    """(N, 3) float32: frame (a place among the T), x, y."""
    times: Array
    """(T,) float64: seconds; NaN where unknown."""
    cuts: Array
    """(C,) int64: frames (places among the T) that begin a scene; no track crosses them."""
    size: Size
    """(height, width) of the frames."""
    first: int = 0
    """The number of the first of the T frames in its clip."""
    stride: int = 1
    """How many frames of the clip one of the T frames stands for."""

    @property
    def frames(self) -> Array:
        """(T,) int64: the number of each frame in its clip."""
        return self.first + self.stride * np.arange(self.points.shape[1], dtype=np.int64)

    def save(self, path: str | Path) -> None:
        """Write a .npz or .csv file."""
        write_tracks(Path(path), self)


def references_of(queries: Array) -> list[Reference]:
    """(N, 3) queries (frame, x, y) -> one reference per frame, in order; see `order_of`."""
    frames = queries[:, 0].astype(np.int64)
    return [
        Reference(int(frame), np.ascontiguousarray(queries[frames == frame, 1:], np.float32))
        for frame in np.unique(frames)
    ]


def order_of(queries: Array) -> Array:
    """(N,) the place of each query among the points of all references, one after the other."""
    return np.argsort(np.argsort(queries[:, 0], kind="stable"), kind="stable")


def grid(size: Size, spacing: int) -> Array:
    """(P, 2) points in rows, `spacing` px apart, in the middle of the frame; 1: every pixel."""
    if spacing < 1 or spacing > min(size):
        raise InputError(f"`grid` must be 1 to {min(size)} px for these frames, got {spacing}")
    y, x = (np.arange((side - 1) % spacing // 2, side, spacing) for side in size)
    return np.stack([part.ravel() for part in np.meshgrid(x, y)], 1).astype(np.float32)


def inside(points: Array, size: Size) -> Array:
    """(P, 2) px -> (P,) bool: whether a pixel of the frame contains the point."""
    return np.asarray(((points >= -0.5) & (points < np.array(size[::-1]) - 0.5)).all(1))


def check_points(references: Sequence[Reference], size: Size) -> None:
    """Refuse points outside the frame."""
    height, width = size
    for points in (reference.points for reference in references):
        outside = ~inside(points, size)
        if outside.any():
            x, y = points[outside][0]
            raise InputError(
                f"the point {x:g},{y:g} lies outside the frames, which are {width}x{height}"
            )


# --- files ----------------------------------------------------------------------------------------

TRACK_SUFFIXES = (".npz", ".csv")
COLUMNS = ("point", "frame", "time", "x", "y", "visible", "expected_error")
_SHAPES = {
    "points": ("N", "T", 2),
    "occluded": ("N", "T"),
    "expected_error": ("N", "T"),
    "interval": ("N", "T"),
    "queries": ("N", 3),
    "times": ("T",),
    "frames": ("T",),
    "cuts": ("C",),
    "size": (2,),
}
"""The arrays of a .npz file."""


def check_tracks_name(path: Path) -> None:
    """Refuse a file that is neither .npz nor .csv."""
    if path.suffix.lower() not in TRACK_SUFFIXES:
        raise InputError(f"{path}: tracks must end in {' or '.join(TRACK_SUFFIXES)}")


def write_tracks(path: Path, tracks: Tracks) -> None:
    """Write tracks as .npz or .csv, whole or not at all."""
    check_tracks_name(path)
    if path.suffix.lower() == ".npz":
        write_files({path: encode_arrays(_arrays(tracks))})
        return
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_rows(tracks))


def _arrays(tracks: Tracks) -> dict[str, Array]:
    return {
        "points": tracks.points.astype(np.float32),
        "occluded": ~tracks.visible.astype(bool),
        "expected_error": tracks.error.astype(np.float32),
        "interval": tracks.interval.astype(np.int16),
        "queries": tracks.queries.astype(np.float32),
        "times": tracks.times.astype(np.float64),
        "frames": tracks.frames,
        "cuts": tracks.cuts.astype(np.int64),
        "size": np.array(tracks.size, np.int64),
    }


def _rows(tracks: Tracks) -> Iterator[tuple[object, ...]]:
    """A row for each point and frame; empty where there is no number."""
    times = ["" if np.isnan(time) else f"{time:.6f}" for time in tracks.times]
    frames = tracks.frames.tolist()
    for number, (points, visible, error) in enumerate(
        zip(tracks.points, tracks.visible, tracks.error, strict=True)
    ):
        places = zip(frames, times, points.tolist(), visible.tolist(), error.tolist(), strict=True)
        for frame, time, (x, y), seen, off in places:
            numbers = [f"{value:.3f}" if value == value else "" for value in (x, y, off)]
            yield number, frame, time, *numbers[:2], int(seen), numbers[2]


def read_tracks(path: Path) -> Tracks:
    """Read tracks from a .npz file."""
    if path.suffix.lower() != ".npz":
        raise InputError(f"{path}: tracks are read from .npz files; a .csv file lacks sizes")
    data = read_bytes(path, most_bytes())
    with refusing(str(path), InputError):
        arrays = decode_arrays(data, _SHAPES)
        _check_shapes(arrays)
        frames, (height, width) = arrays["frames"], arrays["size"].tolist()
        return Tracks(
            points=arrays["points"],
            visible=~arrays["occluded"].astype(bool),
            error=arrays["expected_error"],
            size=(height, width),
            first=int(frames[0]) if len(frames) else 0,
            stride=int(frames[1] - frames[0]) if len(frames) > 1 else 1,
            **{name: arrays[name] for name in ("interval", "queries", "times", "cuts")},
        )


def _check_shapes(arrays: Mapping[str, Array]) -> None:
    """Refuse arrays that do not belong together."""
    sides: dict[str, int] = {}
    for name, shape in _SHAPES.items():
        found = arrays[name].shape
        wanted = tuple(
            sides.setdefault(side, length) if isinstance(side, str) else side
            for side, length in zip(shape, found, strict=False)
        )
        if len(found) != len(shape) or found != wanted:
            text = ", ".join(map(str, shape))
            raise InputError(f"{name} must have the shape ({text}) of tracks, got {found}")


_POINTS = ("frame", "x", "y")


def read_points(path: Path) -> Array:
    """Read a .csv file with the columns frame, x, y, in any order: (N, 3) float32."""
    data = read_bytes(path, most_bytes())
    with refusing(str(path), InputError):
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InputError("points must be a .csv file, and this is no text") from None
        lines = csv.reader(text.splitlines())
        header = [word.strip().lower() for word in next(lines, [])]
        if sorted(header) != sorted(_POINTS):
            got = ", ".join(header)[:80] or "nothing"
            raise InputError(f"the first line must be frame,x,y, got {got}")
        places = [header.index(name) for name in _POINTS]
        points = [
            _point([row[place] for place in places] if len(row) == 3 else row, lines.line_num)
            for row in lines
            if any(word.strip() for word in row)
        ]
        if not points:
            raise InputError("the file has no points, only a header")
        return np.array(points, np.float32)


def _point(words: Sequence[str], line: int) -> tuple[float, float, float]:
    try:
        frame, x, y = map(float, words)
    except ValueError:
        got = ",".join(words)[:80]
        raise InputError(
            f"line {line}: expected three numbers, frame, x and y, got {got}"
        ) from None
    if not (frame >= 0 and frame.is_integer()):
        raise InputError(
            f"line {line}: a frame is a whole number from 0 on, got {words[0].strip()}"
        )
    if not np.isfinite([x, y]).all():
        raise InputError(f"line {line}: x and y must be finite numbers, got {x:g} and {y:g}")
    return frame, x, y
