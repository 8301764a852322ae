"""What a track is: where a point of one frame is in the others, visible or not, and how surely."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..files import Array
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
    """(N, 3) float32: frame, x, y."""
    times: Array
    """(T,) float64: seconds; NaN where unknown."""
    cuts: Array
    """(C,) int64: frames at which a new scene begins; no track crosses them."""
    size: Size
    """(height, width) of the frames."""


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


def check_points(references: Sequence[Reference], size: Size) -> None:
    """Refuse points outside the frame."""
    height, width = size
    low, high = np.float32(-0.5), np.array([width, height]) - np.float32(0.5)
    for points in (reference.points for reference in references):
        inside = ((points >= low) & (points < high)).all(1)
        if not inside.all():
            x, y = points[~inside][0]
            raise InputError(
                f"the point {x:g},{y:g} lies outside the frames, which are {width}x{height}"
            )
