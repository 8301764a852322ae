"""Footage: which frames of clips can be used, which are held back, and which pairs are taken.

Blank and duplicated frames are left out, and no pair spans a cut. What is held back are parts of
the time line: no frame of them is trained on.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from math import prod, sqrt
from pathlib import Path
from statistics import median
from typing import NamedTuple

import cv2
import numpy as np

from ..data.frames import CAMERA, check_source
from ..errors import InputError, counted
from ..evaluation.evaluate import dis
from ..files import Array, encode_image, to_uint8, write_files
from ..ops import Size
from ..video import Selection, Source, ahead, open_source
from ..video.flows import CUT, small_grey, small_size, small_unexplained
from ..video.frames import Frame, clips_below, clips_of_pattern
from .settings import AdaptConfig

LEAST = 16  # usable frames, of all clips together
_FEWEST = 6  # pairs: of fewer, all may get better by chance
_BLANK = 0.75  # grey levels: standard deviation of a frame that shows nothing
_DUPLICATE = 1.0  # grey levels: largest change of a small picture that is the same frame again
_ODD = 3.0  # a cut is this many times less explained than the clip's usual pairs
_LONG = 80  # frames from which the middle of the time line is held back too
_HELD = "held back"
_GUARD = 1  # frames between what is trained on and what is held back, which are not used
SLOWEST, NUM_SPEEDS = 0.5, 9  # px, octaves: all that is slower, or faster, is alike
_FAST = 90  # percentile: the speed of a pair is that of its fast parts
_TRACED = 16  # px: the shorter side of pictures that OpenCV's flow needs


class UsableFrame(NamedTuple):
    """A frame that can be in a pair."""

    number: int
    """Counted from 0 in its clip."""
    shot: int
    """The number of cuts before it."""
    speed: float
    """Px that the fast parts have moved since the usable frame before."""


@dataclass(frozen=True)
class ClipScan:
    """What one look at all frames of a clip has found."""

    text: str
    size: Size
    frames: tuple[UsableFrame, ...]
    num_frames: int
    skipped: dict[str, int]
    """How many frames are "blank" or "duplicated", and how many "cuts" there are."""
    sha256: str
    """Of the file; of a folder of frames, of the hashes of its files."""
    num_files: int = 1


class FootagePair(NamedTuple):
    """Two frames of a clip."""

    clip: int
    first: int
    second: int
    speed: float
    """Px that its fast parts move, as far as one can see before any estimate."""

    @property
    def distance(self) -> int:
        """Frames from the first to the second."""
        return self.second - self.first


@dataclass(frozen=True)
class Footage:
    """The clips, and the pairs that are trained on and held back."""

    clips: tuple[ClipScan, ...]
    training: tuple[FootagePair, ...]
    held_back: tuple[FootagePair, ...]

    @property
    def identity(self) -> str:
        """A hash of the files and of the pairs; names of files do not count."""
        pairs = [[pair[:3] for pair in some] for some in (self.training, self.held_back)]
        text = json.dumps([[clip.sha256 for clip in self.clips], pairs])
        return hashlib.sha256(text.encode()).hexdigest()


# --- clips ----------------------------------------------------------------------------------------


def list_clips(texts: Sequence[str]) -> list[str]:
    """Return each clip: of a video itself, of a folder or pattern those in it. Opens nothing."""
    clips: list[str] = []
    for text in texts:
        check_source(text)
        if text.startswith(CAMERA):
            raise InputError("a camera cannot be adapted to, only a clip; record it first")
        path = Path(text)
        if path.is_file():
            clips.append(text)
            continue
        found = [*(clips_below(path) if path.is_dir() else clips_of_pattern(path))]
        if not found:
            raise InputError(f"{text} has no video and no folder with frames in it")
        clips += found
    return [*dict.fromkeys(clips)]


def hash_files(source: Source, text: str) -> tuple[str, int]:
    """Return the hash of a clip's file, or of the hashes of its frames, and the number of files."""
    if not source.files:
        return _sha256(Path(text)), 1
    hashes = " ".join(map(_sha256, source.files))
    return hashlib.sha256(hashes.encode()).hexdigest(), len(source.files)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def readable_frames(source: Source, text: str) -> Iterator[Frame]:
    """Yield the frames of a clip; one that cannot be read, or has another size, is an error."""
    with closing(ahead(Selection(on_error="skip").frames(source))) as frames:
        for frame in frames:
            if frame.image is None:
                raise InputError(
                    f"{text}: frame {frame.number}: {frame.problem}; give a clip without it"
                )
            yield frame


def open_clip(text: str) -> Source:
    """Open a clip; refuse what is not one."""
    source = open_source(text)
    if source.scenes:
        raise InputError(f"{text} holds KITTI's pairs, not a clip: motion does not go on in them")
    return source


# --- the scan -------------------------------------------------------------------------------------


@dataclass
class _Scan:
    """What is known of a clip after some of its frames."""

    frames: list[UsableFrame] = field(default_factory=list)
    unexplained: list[float] = field(default_factory=list)
    """For each usable frame but the first: how badly motion explains it from the one before."""
    skipped: Counter[str] = field(default_factory=Counter)
    last: tuple[Array, Array] | None = None
    """The last usable frame, small: in grey, and as OpenCV's flow takes it."""

    def add(self, frame: Frame, trace: Callable[[Array, Array], Array]) -> None:
        assert frame.image is not None
        image = to_uint8(frame.image)
        grey = small_grey(image)
        if grey.std() < _BLANK:
            self.skipped["blank"] += 1
            return
        if self.last is not None and np.abs(grey - self.last[0]).max() < _DUPLICATE:
            self.skipped["duplicated"] += 1
            return
        small, speed = _small(image), 0.0
        if self.last is not None:
            size = (image.shape[0], image.shape[1])
            vectors = trace(self.last[1], small) * (size[1] / small.shape[1])
            speed = float(np.percentile(np.hypot(vectors[..., 0], vectors[..., 1]), _FAST))
            vectors = cv2.resize(vectors, grey.shape[::-1], interpolation=cv2.INTER_AREA)
            self.unexplained.append(small_unexplained(self.last[0], grey, vectors, size))
        self.frames.append(UsableFrame(frame.number, 0, speed))
        self.last = grey, small

    def in_shots(self) -> tuple[UsableFrame, ...]:
        """The frames with the number of their shot."""
        if not self.unexplained:
            return tuple(self.frames)
        least = max(CUT, _ODD * median(self.unexplained))
        cuts = np.cumsum([False, *(value > least for value in self.unexplained)])
        self.skipped["cuts"] = int(cuts[-1])
        return tuple(f._replace(shot=int(shot)) for f, shot in zip(self.frames, cuts, strict=True))


def _small(image: Array) -> Array:
    height, width = small_size(*image.shape[:2])
    scale = max(1.0, _TRACED / min(height, width))
    size = (round(width * scale), round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def scan_clip(text: str) -> ClipScan:
    """Look at every frame of a clip once, small."""
    source, scan, trace, count = open_clip(text), _Scan(), dis(), 0
    size = (0, 0)
    for frame in readable_frames(source, text):
        assert frame.image is not None
        size, count = (frame.image.shape[0], frame.image.shape[1]), count + 1
        scan.add(frame, trace)
    if not count:
        raise InputError(f"{text} has no frames")
    sha256, num_files = hash_files(source, text)
    frames = scan.in_shots()
    return ClipScan(text, size, frames, count, dict(scan.skipped), sha256, num_files)


def check_footage(clips: Sequence[ClipScan]) -> None:
    """Refuse footage that is too short, blank or still."""
    usable, in_all = sum(len(c.frames) for c in clips), sum(c.num_frames for c in clips)
    if usable >= LEAST:
        return
    skipped: Counter[str] = Counter()
    for clip in clips:
        skipped.update(clip.skipped)
    if in_all >= LEAST and skipped["duplicated"] >= skipped["blank"]:
        raise InputError(
            f"the footage is still: {usable} of its {in_all} frames differ from the one before, "
            f"and at least {LEAST} must"
        )
    blank = f", {skipped['blank']} of them blank" if skipped["blank"] else ""
    raise InputError(
        f"the footage is too short: it has {counted(in_all, 'frame')}{blank}, and at least {LEAST} "
        f"are needed, far better hundreds"
    )


# --- the choice of pairs --------------------------------------------------------------------------


def choose_pairs(clips: Sequence[ClipScan], settings: AdaptConfig, max_pixels: int = 0) -> Footage:
    """Choose pairs whose motion covers the range; refuse footage that has not enough of them."""
    check_footage(clips)
    candidates = [*_candidates(clips, settings)]
    training = [pair for is_held, pair in candidates if not is_held]
    held_back = [pair for is_held, pair in candidates if is_held]
    if min(len(training), len(held_back)) < _FEWEST:
        raise InputError(
            f"the footage has too few pairs without a cut: {len(training)} to train on and "
            f"{len(held_back)} to judge by, and at least {_FEWEST} of each are needed; give more"
        )
    most = min(settings.pairs, pairs_that_fit(clips, settings, max_pixels))
    chosen = spread(training, most), spread(held_back, settings.held_back_pairs)
    return Footage(tuple(clips), *map(tuple, chosen))


def _candidates(
    clips: Sequence[ClipScan], settings: AdaptConfig
) -> Iterator[tuple[bool, FootagePair]]:
    """Yield each pair of a distance, within one part of the time line and one shot."""
    parts = time_parts(sum(len(clip.frames) for clip in clips), settings.held_back)
    start = 0
    for number, clip in enumerate(clips):
        for place, frame in enumerate(clip.frames):
            for distance in settings.distances:
                between = clip.frames[place + 1 : place + distance + 1]
                if len(between) < distance or between[-1].shot != frame.shot:
                    continue
                covered = {parts[start + place + step] for step in range(distance + 1)}
                if "" in covered:  # which lies between any two parts
                    continue
                speed = sum(each.speed for each in between)
                pair = FootagePair(number, frame.number, between[-1].number, speed)
                yield covered.pop().startswith(_HELD), pair
        start += len(clip.frames)


def time_parts(count: int, share: float) -> list[str]:
    """Return for each frame of the time line the part it is in; "": in none.

    The end is held back; in long footage half as much of it, and as much before the middle.
    """
    if count < _LONG:
        length = max(round(share * count), 5)
        blocks = [(count - length, count)]
    else:
        length = round(share * count / 2)
        blocks = [(count // 2 - length, count // 2), (count - length, count)]
    parts = ["training 0"] * count
    for number, (first, last) in enumerate(blocks, start=1):
        after = min(last + _GUARD, count)
        parts[first - _GUARD :] = [""] * (after - first + _GUARD) + [f"training {number}"] * (
            count - after
        )
        parts[first:last] = [f"{_HELD} {number}"] * (last - first)
    return parts


def spread(pairs: Sequence[FootagePair], count: int) -> list[FootagePair]:
    """Choose pairs evenly over speeds, and within each speed evenly over time; in their order."""
    by_speed: dict[int, list[FootagePair]] = defaultdict(list)
    for pair in pairs:
        by_speed[int(speed_bins(pair.speed))].append(pair)
    chosen: list[FootagePair] = []
    left = len(by_speed)
    for bin_pairs in sorted(by_speed.values(), key=len):  # what a rare speed lacks, others get
        take = min(len(bin_pairs), -(-(count - len(chosen)) // left))
        chosen += [bin_pairs[(2 * n + 1) * len(bin_pairs) // (2 * take)] for n in range(take)]
        left -= 1
    return sorted(chosen[:count])


def speed_bins(speed: Array | float) -> Array:
    """The number of the octave of each speed in px, from 0."""
    octave = np.log2(np.maximum(speed, SLOWEST) / SLOWEST)
    return np.minimum(octave, NUM_SPEEDS - 1).astype(np.int64)


# --- frames on disk -------------------------------------------------------------------------------

BYTES_PER_PIXEL = 8  # of the flows of a pair, both ways
_FRAME_BYTES = 2.0  # of a frame's pixel as .png, about
_BATCH = 32  # frames that are written at a time


def stored_size(size: Size, max_pixels: int) -> Size:
    """(height, width) in which frames are kept: no larger than the network sees them."""
    if not max_pixels or prod(size) <= max_pixels:
        return size
    scale = sqrt(max_pixels / prod(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def pairs_that_fit(clips: Sequence[ClipScan], settings: AdaptConfig, max_pixels: int) -> int:
    """Return how many pairs the limit of the disk allows; fewer than 4 are an error."""
    pixels = max(prod(stored_size(clip.size, max_pixels)) for clip in clips if clip.frames)
    bytes_each = pixels * (BYTES_PER_PIXEL + 2 * _FRAME_BYTES) * (1 + settings.new_frames)
    fitting = int(settings.disk * 1e9 / bytes_each)
    if fitting < 4:
        raise InputError(
            f"within {settings.disk:g} GB there is room for {fitting} pairs; allow more with "
            f"`changes=['adapt.disk={4 * bytes_each * 1.2 / 1e9:.2g}']`"
        )
    return fitting


def bytes_on_disk(footage: Footage, settings: AdaptConfig, max_pixels: int) -> float:
    """Return about how many bytes frames and flows take."""
    flows = sum(
        prod(stored_size(footage.clips[pair.clip].size, max_pixels)) * BYTES_PER_PIXEL
        for pair in footage.training
    )
    frames = sum(
        prod(stored_size(footage.clips[clip].size, max_pixels)) * _FRAME_BYTES
        for clip, _ in used_frames(footage)
    )
    return flows * (1 + settings.new_frames) + frames


def used_frames(footage: Footage) -> set[tuple[int, int]]:
    """Clip and number of each frame of a pair."""
    pairs = (*footage.training, *footage.held_back)
    return {(pair.clip, number) for pair in pairs for number in (pair.first, pair.second)}


def frame_path(folder: Path, clip: int, number: int) -> Path:
    """Where a frame is kept."""
    return folder / f"{clip:03}-{number:06}.png"


def store_frames(footage: Footage, folder: Path, max_pixels: int) -> None:
    """Write the frames of all pairs that are not there yet."""
    missing = defaultdict(set)
    for clip, number in used_frames(footage):
        if not frame_path(folder, clip, number).is_file():
            missing[clip].add(number)
    for clip in sorted(missing):
        _store_clip(footage.clips[clip], clip, missing[clip], folder, max_pixels)


def _store_clip(
    scan: ClipScan, clip: int, numbers: set[int], folder: Path, max_pixels: int
) -> None:
    images: dict[Path, Array] = {}
    for number, image in used_images(scan.text, numbers, max_pixels):
        images[frame_path(folder, clip, number)] = image
        if len(images) == _BATCH:
            _write_images(images)
            images.clear()
    _write_images(images)


def _write_images(images: Mapping[Path, Array]) -> None:
    with ThreadPoolExecutor() as pool:
        encoded = pool.map(encode_image, images.keys(), images.values())
        write_files(dict(zip(images, encoded, strict=True)))


def used_images(text: str, numbers: set[int], max_pixels: int) -> Iterator[tuple[int, Array]]:
    """Yield frames of a clip with their numbers, in the size in which they are used."""
    left = set(numbers)
    for frame in readable_frames(open_clip(text), text):
        if frame.number in left:
            assert frame.image is not None
            image = to_uint8(frame.image)
            height, width = stored_size((image.shape[0], image.shape[1]), max_pixels)
            if (height, width) != image.shape[:2]:
                image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
            yield frame.number, image
            left.discard(frame.number)
        if not left:
            return
    raise InputError(f"{text} has changed: it has fewer frames than before")
