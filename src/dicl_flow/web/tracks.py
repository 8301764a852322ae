"""Tracks of the explorer: pixels of a frame, followed through its clip one frame at a time."""

from collections import OrderedDict
from collections.abc import Iterator
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from ..estimation.estimator import FlowEstimator, FlowSequence
from ..files import Array
from ..tracking.intervals import INTERVALS
from ..tracking.tracker import Tracker
from ..tracking.tracks import Positions, Reference, check_points, grid
from .clips import Stretch, check_sizes
from .service import check_seen

_CPU_INTERVALS = (1, 4, 16)  # besides the direct flow; each costs two estimates per frame
_CPU_REACH, _REACH = 24, 96  # frames on either side of the point's
_FRAME_BYTES = 1 << 29  # of frames that are kept for the way back in time
_POSITION_BYTES = 1 << 28  # of all positions, where every pixel is followed
_BYTES_PER_POSITION = 15
_KEPT_RUNS = 2


class Pixel(NamedTuple):
    """A pixel that is followed."""

    x: int
    y: int


class Place(NamedTuple):
    """Where the followed pixels are in a frame."""

    frame: int
    positions: Positions | None
    """None beyond a cut."""
    cut: int | None = None
    """The frame that begins a new scene, if there is a cut before or after this one."""


class Run:
    """Pixels of one frame on their way through the frames around it; every pixel, if that fits.

    A step computes one frame: from the pixel's frame to the last, then from there to the first.
    """

    def __init__(self, estimator: FlowEstimator, clip: Stretch, frame: int, pixel: Pixel) -> None:
        image = clip.read(frame)
        self._estimator, self._frame = estimator, frame
        self._size = (image.shape[0], image.shape[1])
        check_seen(estimator, self._size, "the clip")
        on_cpu = estimator.device.type == "cpu"
        reach = min(_CPU_REACH if on_cpu else _REACH, max(1, _FRAME_BYTES // image.nbytes))
        self.stretch = clip.around(frame, reach)
        self.cropped = self.stretch != clip
        self.intervals = _CPU_INTERVALS if on_cpu else tuple(INTERVALS)
        self._pixel = None if self._every_pixel_fits() else pixel
        self.check(pixel)
        self._places: list[Place] = []
        self._steps: Iterator[Place] | None = self._follow()
        self._failed = False

    def summary(self) -> dict[str, Any]:
        """The frames and intervals, for JSON."""
        return {
            "first": self.stretch.first,
            "last": self.stretch.last,
            "cropped": self.cropped,
            "intervals": list(self.intervals),
        }

    def check(self, pixel: Pixel) -> None:
        """Refuse a pixel outside the frame."""
        check_points([Reference(self._frame, _points(pixel))], self._size)

    def has(self, pixel: Pixel) -> bool:
        """Whether a pixel is among those that are followed."""
        return not self._failed and self._pixel in (None, pixel)

    @property
    def finished(self) -> bool:
        """Whether all steps were computed."""
        return self._steps is None

    def knows(self, step: int) -> bool:
        """Whether a step was computed, or is beyond the last."""
        return step < len(self._places) or self.finished

    def step(self, step: int, pixel: Pixel) -> dict[str, Any] | None:
        """A pixel in the frame of a step, for JSON, computed once; None after the last."""
        while self._steps is not None and step >= len(self._places):
            self._advance(self._steps)
        return self._describe(self._places[step], pixel) if step < len(self._places) else None

    def _advance(self, steps: Iterator[Place]) -> None:
        try:
            self._places.append(next(steps))
        except StopIteration:
            self._steps = None  # its frames and features are not needed any more
        except BaseException:
            self._failed = True
            raise

    def _describe(self, place: Place, pixel: Pixel) -> dict[str, Any]:
        found: dict[str, Any] = {"frame": place.frame}
        if place.cut is not None:
            found["cut"] = place.cut
        if place.positions is None:
            return found
        index = pixel.y * self._size[1] + pixel.x if self._pixel is None else 0
        points, *others = place.positions
        (x, y), (error, visible, interval) = points[index], (part[index] for part in others)
        back = int(interval) if place.frame > self._frame else -int(interval)
        return found | {
            "x": round(float(x), 3),
            "y": round(float(y), 3),
            "visible": bool(visible),
            "error": round(float(error), 4) if isfinite(error) else None,
            "from": place.frame - back,
        }

    def _every_pixel_fits(self) -> bool:
        """If so, other pixels of the frame need no more flows."""
        height, width = self._size
        frames = self.stretch.last - self.stretch.first + 1
        return height * width * frames * _BYTES_PER_POSITION <= _POSITION_BYTES

    def _follow(self) -> Iterator[Place]:
        first, last, read = self.stretch.first, self.stretch.last, self.stretch.read
        sequence = FlowSequence(self._estimator, backward=True)
        yield from self._pass(sequence, map(read, range(self._frame, last + 1)), 1)
        if first < self._frame:
            # read in order, since a video is decoded in order
            frames = [read(number) for number in range(first, self._frame + 1)]
            backward = self._pass(sequence, iter(frames[::-1]), -1)
            next(backward)  # the frame of the pixel, which is known
            yield from backward

    def _pass(
        self, sequence: FlowSequence, frames: Iterator[Array], direction: int
    ) -> Iterator[Place]:
        points = grid(self._size, 1) if self._pixel is None else _points(self._pixel)
        tracker = Tracker(
            self._estimator,
            [Reference(self._frame, points)],
            intervals=self.intervals,
            sequence=sequence,
        )
        for count, image in enumerate(frames):
            number = self._frame + direction * count
            check_sizes(image, np.empty((*self._size, 0)), f"frames {self._frame} and {number}")
            positions = tracker.push(image, number)[0]
            cut = (number if direction > 0 else number + 1) if tracker.cut else None
            if positions is not None:
                positions = Positions(*(part.cpu() for part in positions))
            yield Place(number, positions, cut)
            if tracker.ended:
                return


def _points(pixel: Pixel) -> Array:
    return np.array([pixel], np.float32)


class Runs:
    """The latest runs: another pixel of the same frame needs no more flows."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[object, ...], Run] = OrderedDict()

    def find(self, key: tuple[object, ...], pixel: Pixel) -> Run | None:
        """The run of this key that follows the pixel, if there is one."""
        run = self._runs.get(key)
        if run is None or not run.has(pixel):
            return None
        run.check(pixel)
        self._runs.move_to_end(key)
        return run

    def keep(self, key: tuple[object, ...], run: Run) -> None:
        """Keep a run, and those before that are finished: others hold many features."""
        finished = [(k, r) for k, r in self._runs.items() if r.finished and k != key]
        self._runs = OrderedDict([*finished, (key, run)][-_KEPT_RUNS:])
