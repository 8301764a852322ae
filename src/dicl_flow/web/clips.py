"""Clips of the explorer: pairs of two images, a folder or a video, read when they are shown."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import Array, read_flow, read_image

if TYPE_CHECKING:
    from ..video import Shot, Source

_KEPT_FRAMES = 8  # of a video: those around the pair that is shown


@dataclass(frozen=True)
class ExploredPair:
    """Two frames to look at."""

    name: str
    read1: Callable[[], Array]
    """Returns frame 1, (H, W, 3) RGB."""
    read2: Callable[[], Array]
    read_truth: Callable[[], Array] | None = None
    """Returns the true flow, (H, W, 2), NaN where it is unknown; None: there is none."""
    follows: bool = False
    """Whether its frame 1 is frame 2 of the pair before."""

    def frames(self) -> tuple[Array, Array]:
        """Read both frames; they have one size."""
        image1, image2 = self.read1(), self.read2()
        check_sizes(image1, image2, f"the frames of {self.name}")
        return image1, image2


@dataclass(frozen=True)
class Stretch:
    """Frames that follow each other, from `first` to `last`; the pair of a number begins there."""

    first: int
    last: int
    read: Callable[[int], Array]
    """Returns a frame by its number, (H, W, 3) RGB."""

    def around(self, frame: int, reach: int) -> "Stretch":
        """The part that is at most `reach` frames away."""
        first, last = max(self.first, frame - reach), min(self.last, frame + reach)
        return replace(self, first=first, last=last)


@dataclass(frozen=True)
class Clip:
    """Pairs that belong together."""

    name: str
    pairs: Sequence[ExploredPair]
    rate: float | None = None
    """Frames per second, of a video."""
    close: Callable[[], None] = lambda: None
    """Removes what the clip has on disk."""

    def pair(self, number: int) -> ExploredPair:
        """Return a pair by its number, counted from 0."""
        if not 0 <= number < len(self.pairs):
            raise InputError(f"there is no pair {number}; {self.name} has {len(self.pairs)}")
        return self.pairs[number]

    def stretch(self, number: int) -> Stretch:
        """Return the frames that lead to a pair without a gap, and on from there."""
        self.pair(number)
        first = last = number
        while self.pairs[first].follows:
            first -= 1
        while last + 1 < len(self.pairs) and self.pairs[last + 1].follows:
            last += 1

        def read(frame: int) -> Array:
            return self.pairs[frame].read1() if frame <= last else self.pairs[last].read2()

        return Stretch(first, last + 1, read)


def check_sizes(one: Array, two: Array, what: str) -> None:
    """Refuse two arrays of different width or height."""
    if one.shape[:2] != two.shape[:2]:
        sizes = " and ".join(f"{array.shape[1]}x{array.shape[0]}" for array in (one, two))
        raise InputError(f"{what} must have one size, got {sizes}")


def clip_of_arrays(name: str, image1: Array, image2: Array, truth: Array | None = None) -> Clip:
    """Two frames in memory."""
    check_sizes(image1, image2, "the two images")
    if truth is not None:
        check_sizes(image1, truth, "the images and their `truth`")
    read_truth = None if truth is None else lambda: truth
    return Clip(name, [ExploredPair(name, lambda: image1, lambda: image2, read_truth)])


def pair_of_files(name: str, image1: Path, image2: Path, truth: Path | None = None) -> ExploredPair:
    """Two images, and a flow file with their truth."""
    read_truth = None if truth is None else partial(read_flow, truth)
    return ExploredPair(name, partial(_read, image1), partial(_read, image2), read_truth)


def clip_of_source(text: str) -> Clip:
    """Open a video, a folder of frames or a pattern; the first pair is read to check it."""
    from ..video import open_source  # torch

    source = open_source(text, keep_depth=True)
    if source.live:
        raise InputError("a camera has no frames to look at again; give a video or images")
    return _checked(source, Path(text).name or "frames")


def clip_of_upload(path: Path, name: str, container: str, close: Callable[[], None]) -> Clip:
    """Open an uploaded video, whose file `close` removes; errors contain `name`."""
    from ..video import video_source  # torch

    try:
        return replace(_checked(video_source(path, container), name), close=close)
    except InputError as error:
        raise InputError(str(error).replace(str(path), name)) from None


def _checked(source: "Source", name: str) -> Clip:
    if source.files:
        pairs = _pairs_of_files([*zip(source.shots(), source.files, strict=True)])
    else:
        read, count = _Decoder(source), source.count or sum(1 for _ in source.shots())
        pairs = [
            ExploredPair(
                f"frame {number}",
                partial(read, number),
                partial(read, number + 1),
                follows=number > 0,
            )
            for number in range(count - 1)
        ]
    if not pairs:
        raise InputError(f"{name} has a single frame; at least two are needed")
    pairs[0].frames()
    return Clip(name, pairs, source.rate)


def _pairs_of_files(frames: "Sequence[tuple[Shot, Path]]") -> list[ExploredPair]:
    """Each frame and the next, within each scene."""
    pairs: list[ExploredPair] = []
    follows = False
    for (one, path1), (two, path2) in pairwise(frames):
        if one.scene == two.scene:
            pair = pair_of_files(one.name, path1, path2)
            pairs.append(replace(pair, follows=follows))
        follows = one.scene == two.scene
    return pairs


def _read(path: Path) -> Array:
    try:
        return read_image(path)
    except (InputError, OSError) as error:  # an answer names the file, not its folder
        raise InputError(str(error).replace(str(path), path.name)) from None


class _Decoder:
    """Frames of a video by number; an earlier one is decoded again, from the start."""

    def __init__(self, source: "Source") -> None:
        self._source, self._lock = source, Lock()
        self._shots: Iterator[tuple[int, Shot]] = iter(())
        self._next = 0
        self._kept: OrderedDict[int, Array] = OrderedDict()

    def __call__(self, number: int) -> Array:
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._decode(number)
                if len(self._kept) > _KEPT_FRAMES:
                    self._kept.popitem(last=False)
            return self._kept[number]

    def _decode(self, number: int) -> Array:
        if number < self._next or not self._next:
            self._shots, self._next = enumerate(self._source.shots()), 0
        for place, shot in self._shots:
            self._next = place + 1
            if place == number:
                return shot.read()
        raise InputError(f"the video ends before frame {number}")
