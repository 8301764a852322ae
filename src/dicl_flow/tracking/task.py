"""What is to be tracked: the frames of a clip, and the points of some of them.

A place is the number of a frame among the selected ones. Frames may be scaled to compute: points
are given and written in px of the clip.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from ..errors import InputError
from ..files import Array
from ..ops import Size
from ..video import Selection, Source, first_size
from .tracks import Reference, check_points, grid, order_of, references_of


@dataclass(frozen=True)
class Clip:
    """The selected frames of a source; a frame's place is its number among them."""

    source: Source
    selection: Selection
    size: Size
    """(height, width) in the source."""
    used: Size
    """(height, width) as it is computed."""
    first: int
    """The number of the first selected frame in the source."""

    @property
    def count(self) -> int | None:
        """The number of selected frames, as far as the source says it."""
        flows = self.selection.expected_flows(self.source)
        return None if flows is None else flows + 1

    @property
    def scale(self) -> Array:
        """(2,) px of the frames as computed for one px of the source: x, y."""
        return np.array(self.used[::-1]) / np.array(self.size[::-1])

    def inward(self, points: Array) -> Array:
        """Points of the source in px of the frames as computed; a pixel's centre is whole."""
        return ((points + 0.5) * self.scale - 0.5).astype(np.float32)

    def outward(self, points: Array) -> Array:
        """Points of the frames as computed in px of the source."""
        return ((points + 0.5) / self.scale - 0.5).astype(np.float32)

    @property
    def error_scale(self) -> float:
        """Px of the source for one px of error."""
        return float(1 / np.sqrt(self.scale.prod()))

    def place(self, number: int, what: str) -> int:
        """The place of a frame of the source; refuse one that is not selected or not there."""
        place, between = divmod(number - self.first, self.selection.stride)
        if place < 0 or between:
            raise InputError(
                f"{what} is frame {number}, which `start` or `stride` leaves out: frames "
                f"{self.first}, {self.first + self.selection.stride} … are used"
            )
        if place and not self._has(place):
            last = self.first + (self.counted - 1) * self.selection.stride
            raise InputError(f"{what} is frame {number}, but the last frame is {last}")
        return place

    def _has(self, place: int) -> bool:
        """Whether there is such a frame; what a file says of their number may be too low."""
        return (self.count is not None and place < self.count) or place < self.counted

    @cached_property
    def counted(self) -> int:
        """The number of selected frames, counted: what a file says of it may be wrong."""
        start, end = self.selection.start, self.selection.end
        count = 0
        for number, shot in enumerate(self.source.shots()):
            if end is not None and end.is_reached(number, shot):
                break
            count += start is None or start.is_reached(number, shot)
        return -(-count // self.selection.stride)


def look_at(source: Source, selection: Selection) -> Clip:
    """Return what is known of a clip; refuse what cannot be tracked."""
    source.check_clip()
    with closing(selection.frames(source)) as frames:
        begin = list(islice(frames, 2))
        if len(begin) < 2:
            raise InputError("a track needs at least two frames, and the clip has one")
        image = next((f.image for f in (*begin, *frames) if f.image is not None), None)
    if image is None:
        raise InputError("the input has no frame that can be read")
    used = (image.shape[0], image.shape[1])
    size = used if selection.scale == 1 else first_size(source, begin[0].number)
    return Clip(source, selection, size, used, begin[0].number)


@dataclass(frozen=True)
class Task:
    """Which points to track; frames are places, and points in px of the frames as computed."""

    clip: Clip
    references: Sequence[Reference]
    order: Array
    """(N,) the place of each query among the points of all references."""
    backward: bool = True
    """Whether to track back in time from references after the first frame."""
    kept: Sequence[Array] = field(default=())
    """The points of each reference whose positions are kept; of a dense one, those drawn."""
    dense: bool = False

    @property
    def count(self) -> int:
        """The number of points whose positions are kept."""
        return sum(map(len, self.kept))

    @property
    def numbers(self) -> list[int]:
        """The number of each reference in the clip's source."""
        return [self.clip.first + r.frame * self.clip.selection.stride for r in self.references]

    @property
    def last(self) -> int:
        """The place of the last reference."""
        return max(reference.frame for reference in self.references)

    @property
    def steps_back(self) -> int:
        """How many frames the backward stage visits; 0 if there is none."""
        return self.last + 1 if self.backward and self.last else 0

    @property
    def steps(self) -> int | None:
        """How many frames both directions visit, if known."""
        return None if self.clip.count is None else self.clip.count + self.steps_back

    @property
    def queries(self) -> Array:
        """(N, 3) place, x, y of the points that are kept, in their order."""
        parts = [
            np.column_stack([np.full(len(kept), reference.frame), reference.points[kept]])
            for reference, kept in zip(self.references, self.kept, strict=True)
        ]
        return np.concatenate(parts)[self.order].astype(np.float32)


def point_task(clip: Clip, queries: Array, *, backward: bool = True, what: str = "a point") -> Task:
    """Track (N, 3) points: frame, x, y in the source."""
    check_points([Reference(0, queries[:, 1:])], clip.size)
    known: dict[int, int] = {}
    for number in np.unique(queries[:, 0]).astype(int).tolist():
        known[number] = clip.place(number, what)
    places = np.array([known[int(number)] for number in queries[:, 0]])
    inside = np.column_stack([places, clip.inward(queries[:, 1:])]).astype(np.float32)
    references = references_of(inside)
    kept = [np.arange(len(reference.points)) for reference in references]
    return Task(clip, references, order_of(inside), backward, kept)


def grid_queries(clip: Clip, spacing: int, frames: Sequence[int]) -> Array:
    """(N, 3) the points of a grid in each of these frames of the source."""
    points = grid(clip.size, spacing)
    return np.concatenate(
        [np.column_stack([np.full(len(points), frame), points]) for frame in frames]
    ).astype(np.float32)


_DRAWN = 24  # points of a dense track along the shorter side
_APART = 12  # px, at least


def dense_task(
    clip: Clip, frames: Sequence[int], *, backward: bool = True, drawn: bool = False
) -> Task:
    """Track every pixel of these frames of the source; with `drawn`, keep a grid to be drawn."""
    places = [clip.place(frame, "a reference") for frame in frames]
    pixels = grid(clip.used, 1)
    kept = np.zeros(0, np.int64)
    if drawn:
        apart = min(max(_APART, min(clip.used) // _DRAWN), *clip.used)
        x, y = grid(clip.used, apart).T.astype(np.int64)
        kept = y * clip.used[1] + x
    references = [Reference(place, pixels) for place in places]
    order = np.arange(len(kept) * len(places))
    return Task(clip, references, order, backward, [kept] * len(places), dense=True)
