"""Frames of a video, a folder or pattern of images, a camera; which are selected; broken ones."""

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from glob import glob, has_magic
from itertools import islice, pairwise, repeat
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar

import cv2

from ..data.datasets import kitti_scenes
from ..data.frames import (
    CAMERA,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    Look,
    check_source,
    image_files,
    listed,
    natural_key,
)
from ..data.timing import (
    SLACK,
    Decoded,
    Shot,
    Timing,
    in_place,
    read_video_file,
    video_shots,
)
from ..errors import InputError, check_name, counted
from ..fence import current_fence
from ..files import AS_USUAL, Array, Plate, Reading, read_plate, read_seen, to_integers, to_uint8
from ..files.plates import PLATE_SUFFIX

Item = TypeVar("Item")
LOGGING: Any = getattr(cv2.utils, "logging", cv2)  # of OpenCV 5; of OpenCV 4


@dataclass(frozen=True)
class Source:
    """Frames in order; each call of `shots` starts at the first frame."""

    shots: Callable[[], Iterator[Shot]]
    stamp: Mapping[str, object]
    """Identifies the source: changes if another or a changed file is given."""
    rate: float | None = None
    """Frames per second."""
    count: int | None = None
    """The number of frames, if the file states it."""
    live: bool = False
    """Whether it can be read only once, like a camera."""
    files: tuple[Path, ...] = ()
    """The files of the frames, if each frame is a file."""
    scenes: tuple[str, ...] = ()
    """The scene of each frame, if there are several: KITTI's pairs, _10 and _11."""
    look: Look | None = None
    """How a video file stores its pictures; of EXR plates, as they are seen."""

    def check_clip(self) -> None:
        """Refuse what has no end, and pairs."""
        if self.live:
            raise InputError("a camera is not a clip; record it first")
        if self.scenes:
            raise InputError("KITTI's pairs are not a clip: nothing moves from one to the next")


def open_source(
    text: str,
    *,
    keep_depth: bool = False,
    keep_plates: bool = False,
    reading: Reading = AS_USUAL,
) -> Source:
    """Open a video file, a folder, a glob pattern, or camera:0; `reading` is said about images.

    Frames are uint8; with `keep_depth`, images and videos of more bits are uint16. With
    `keep_plates`, which implies it, images come with alpha and values above 1.
    """
    keep_depth |= keep_plates
    check_source(text)
    path = Path(text)
    if text.startswith(CAMERA) or path.is_file():
        for name, value in vars(reading).items():
            if value is not None:
                raise InputError(f"`{name}` is for images, and {text} is a video")
        return _camera(text) if text.startswith(CAMERA) else video_source(path, None, keep_depth)
    return images(_files(text), path, keep_depth, keep_plates, reading)


def _files(text: str) -> list[Path]:
    """The images in a folder, or of a pattern; .exr files, which may be flow, if alone."""
    path = Path(text)
    # Path.glob needs the folder separately
    found = [*(path.iterdir() if path.is_dir() else map(Path, glob(text)))]  # noqa: PTH207
    return image_files(found) or listed(found, [PLATE_SUFFIX])


_SEEN = Look(16, "4:4:4", tags=(1, 13, 1, 1))  # of plates: sRGB


def images(
    frames: list[Path],
    place: Path,
    keep_depth: bool = False,
    keep_plates: bool = False,
    reading: Reading = AS_USUAL,
) -> Source:
    """Frames that are image files."""
    if not frames:
        endings = ", ".join((*IMAGE_SUFFIXES, PLATE_SUFFIX))
        raise InputError(f"no images in {place}; frames must end in {endings}")
    scenes = kitti_scenes(frames)

    def shots() -> Iterator[Shot]:
        for file, scene in zip(frames, scenes or repeat(""), strict=False):
            plate = partial(read_plate, file, reading) if keep_plates else None
            yield Shot(file.stem, None, partial(_read, file, reading, keep_depth), scene, plate)

    path = {"path": str(place.resolve())}
    look = _SEEN if frames[0].suffix.lower() == PLATE_SUFFIX else None
    return Source(shots, path, count=len(frames), files=tuple(frames), scenes=scenes, look=look)


def still_suffix(source: Source) -> str:
    """The ending of images that are made of those of a source."""
    plates = source.files and source.files[0].suffix.lower() == PLATE_SUFFIX
    return PLATE_SUFFIX if plates else ".png"


def _read(file: Path, reading: Reading, keep_depth: bool) -> Array:
    return (to_integers if keep_depth else to_uint8)(read_seen(file, reading))


def capture(device: int | str, *, live: bool) -> Source:
    """Frames that OpenCV reads: a camera by its number, or a file."""
    if not live and current_fence() is not None:
        raise InputError(f"`fenced` reads videos with PyAV only, not {device} with OpenCV")
    level = LOGGING.getLogLevel()
    LOGGING.setLogLevel(0)  # the error is raised below
    try:
        video = cv2.VideoCapture(device)
    finally:
        LOGGING.setLogLevel(level)
    if not video.isOpened():
        raise InputError(f"OpenCV cannot open {'camera ' if live else ''}{device}")
    rate, count = video.get(cv2.CAP_PROP_FPS), video.get(cv2.CAP_PROP_FRAME_COUNT)
    end = count / rate if count > 0 and rate > 0 and not live else None
    timing = Timing(rate or None, not live, end=end, slack=SLACK)  # the end may be that of sound

    def decoded() -> Iterator[Decoded]:
        start = monotonic()
        while True:
            there, image = video.read()
            if not there:
                return
            time = monotonic() - start if live else video.get(cv2.CAP_PROP_POS_MSEC) / 1000
            yield Decoded(time, read=partial(cv2.cvtColor, image, cv2.COLOR_BGR2RGB))

    def shots() -> Iterator[Shot]:
        for number, shot in enumerate(in_place(decoded(), timing)):
            yield shot if live else shot._replace(time=number / rate)

    path = {"path": str(device)}
    return Source(shots, path, rate or None, int(count) if count > 0 else None, live)


def first_size(source: Source, start: int = 0) -> tuple[int, int]:
    """(height, width) of the first frame that can be read, from number `start` on."""
    for shot in islice(source.shots(), start, None):
        with suppress(InputError, OSError):
            height, width = shot.read().shape[:2]
            return height, width
    raise InputError("the input has no frame that can be read")


def _camera(text: str) -> Source:
    number = text.removeprefix(CAMERA)
    if not number.isdecimal():
        raise InputError(f"a camera must be camera:0, camera:1 and so on, got {text!r}")
    return capture(int(number), live=True)


def video_source(path: Path, container: str | None = None, keep_depth: bool = False) -> Source:
    """Frames of a video file; `container` as for `open_video`."""
    timing, _, count, look = read_video_file(path, container)
    deep = keep_depth and look is not None and look.bits > 8
    shots = partial(video_shots, path, timing, container, deep=deep)
    return Source(shots, stamp(path), timing.rate, count, look=look)


def video_from(path: Path, seconds: float) -> Source:
    """A video from a key frame before `seconds`; all of it if seeking misses that.

    Shots are numbered by their time: the rate should be constant.
    """
    whole = video_source(path)

    def shots() -> Iterator[Shot]:
        found = False
        for shot in video_shots(path, read_video_file(path).timing, seconds=seconds):
            found = True
            yield shot
        if not found:
            yield from whole.shots()

    return replace(whole, shots=shots)


def stamp(path: Path) -> dict[str, object]:
    """The path of a file and its change marks."""
    return {"path": str(path.resolve()), **change_marks(path)}


def change_marks(path: Path) -> dict[str, object]:
    """Size and time of modification: they differ if the file has changed."""
    state = path.stat()
    return {"bytes": state.st_size, "modified": state.st_mtime_ns}


@dataclass(frozen=True)
class Frame:
    """A frame of the input."""

    number: int
    """Counted from 0 in the whole input."""
    name: str
    time: float | None
    image: Array | None
    """(H, W, 3) RGB; None if the frame is broken."""
    problem: str = ""
    scene: str = ""
    plate: Plate | None = None
    """All that its file has, if that is to be written."""


@dataclass(frozen=True)
class Moment:
    """A position in a video: a frame number, or seconds."""

    value: float
    in_seconds: bool

    @classmethod
    def parse(cls, option: str, text: str | None) -> "Moment | None":
        """Read "120" as a frame and "3.5s" as seconds."""
        if text is None:
            return None
        number = text.removesuffix("s")
        try:
            value = float(number) if text.endswith("s") else int(number)
        except ValueError:
            value = -1
        if not 0 <= value < float("inf"):
            raise InputError(
                f"{option} must be a frame number (120) or seconds (3.5s), got {text!r}"
            )
        return cls(value, text.endswith("s"))

    def __str__(self) -> str:
        return f"{self.value:g} s" if self.in_seconds else f"frame {self.value:.0f}"

    def is_reached(self, number: int, shot: Shot) -> bool:
        """Whether a shot is at this position or later."""
        if not self.in_seconds:
            return number >= self.value
        if shot.time is None:
            raise InputError("images have no time; give `start` and `end` as frame numbers")
        return shot.time >= self.value


@dataclass(frozen=True)
class Selection:
    """Every `stride`-th frame from `start` to before `end`, resized by `scale`."""

    start: Moment | None = None
    end: Moment | None = None
    stride: int = 1
    scale: float = 1.0
    on_error: str = "stop"
    """At a broken or lost frame: "stop", or "skip" the flows that need it."""
    across_gaps: bool = False
    """Skip such frames, and estimate the flow from the frame before to the frame after them."""

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise InputError(f"`stride` must be at least 1, got {self.stride}")
        if not 0 < self.scale <= 8:
            raise InputError(f"`scale` must be above 0 and at most 8, got {self.scale:g}")
        check_name("`on_error`", self.on_error, ("stop", "skip"))
        start, end = self.start, self.end
        if start and end and start.in_seconds == end.in_seconds and end.value <= start.value:
            raise InputError(f"the end ({end}) must be after the start ({start})")

    def frames(self, source: Source, skip: int = 0) -> "Frames":
        """Yield the selected frames except the first `skip`; the others are not converted."""
        first: int | None = None
        kind: Kind | None = None
        scene, number = "", -1
        for number, shot in enumerate(source.shots()):
            if self.start is not None and not self.start.is_reached(number, shot):
                continue
            if self.end is not None and self.end.is_reached(number, shot):
                return
            first = number if first is None else first
            position, between = divmod(number - first, self.stride)
            if between or (position < skip and (kind is not None or shot.scene)):
                continue
            scene, kind = shot.scene, kind if shot.scene == scene else None
            frame = self._frame(number, shot, kind)
            if frame.image is not None:
                kind = _kind(frame.image)  # of the first frame, even if it is skipped
            if position >= skip:
                yield frame
        if first is None and self.start is not None:
            count = number + 1
            seconds = f" ({count / source.rate:.2f} s)" if source.rate else ""
            length = f"{counted(count, 'frame')}{seconds}"
            raise InputError(f"the start ({self.start}) is past the end: the input has {length}")

    @property
    def in_seconds(self) -> bool:
        """Whether start or end is a time, which images do not have."""
        return any(moment is not None and moment.in_seconds for moment in (self.start, self.end))

    def chosen(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of the selected frames; of images, which are selected by number."""
        start, end = (None if m is None else int(m.value) for m in (self.start, self.end))
        return items[start : end : self.stride]

    def expected_flows(self, source: Source) -> int | None:
        """How many flows there will be, if known."""
        if source.scenes:
            return len(self._pairs(source))
        start, end = (self._number(moment, source.rate) for moment in (self.start, self.end))
        ends = [value for value in (end, source.count) if value is not None]
        return max(-(-(min(ends) - (start or 0)) // self.stride) - 1, 0) if ends else None

    def first_frame(self, source: Source, flow: int) -> int:
        """How many selected frames come before the first frame of flow number `flow`."""
        if not source.scenes:
            return flow
        pairs = self._pairs(source)
        return pairs[flow] if flow < len(pairs) else len(self.chosen(source.scenes))

    def used_frames(self, source: Source, flows: int) -> int:
        """How many selected frames the first `flows` flows need."""
        return self.first_frame(source, flows) + (not source.scenes)

    def _pairs(self, source: Source) -> list[int]:
        """The positions of selected frames that are followed by another one of their scene."""
        neighbours = pairwise(self.chosen(source.scenes))
        return [place for place, (one, two) in enumerate(neighbours) if one == two]

    @staticmethod
    def _number(moment: Moment | None, rate: float | None) -> int | None:
        if moment is None or not moment.in_seconds:
            return None if moment is None else int(moment.value)
        return round(moment.value * rate) if rate else None

    def _frame(self, number: int, shot: Shot, kind: "Kind | None") -> Frame:
        try:
            plate = shot.plate() if shot.plate else None
            image = self.resized(to_integers(plate.seen) if plate else shot.read())
            if kind is not None and _kind(image) != kind:
                raise InputError(_difference(_kind(image), kind))
        except (InputError, OSError) as error:
            if self.on_error == "stop" and not self.across_gaps:
                raise InputError(
                    f"frame {number} ({shot.name}): {error}; `on_error='skip'` continues without it"
                ) from None
            problem = " ".join(str(error).split())
            return Frame(number, shot.name, shot.time, None, problem, shot.scene)
        return Frame(number, shot.name, shot.time, image, scene=shot.scene, plate=plate)

    def resized(self, image: Array) -> Array:
        """Return an image in the size in which it is used."""
        if self.scale == 1:
            return image
        height, width = (max(1, round(side * self.scale)) for side in image.shape[:2])
        method = cv2.INTER_AREA if self.scale < 1 else cv2.INTER_CUBIC
        return cv2.resize(image, (width, height), interpolation=method)


Frames: TypeAlias = Generator[Frame, None, None]
Kind: TypeAlias = tuple[str, int]
"""What all frames share: their size, as "640x480", and the bits of a value."""


def _kind(image: Array) -> Kind:
    return f"{image.shape[1]}x{image.shape[0]}", 8 * image.dtype.itemsize


def _difference(kind: Kind, before: Kind) -> str:
    (size, bits), (size_before, bits_before) = kind, before
    if size != size_before:
        return f"is {size}, but the frames before were {size_before}; all must have one size"
    return f"has {bits} bits, but the frames before had {bits_before}; all must have the same"


def clips_below(folder: Path) -> Iterator[str]:
    """Yield what `open_source` takes for each clip in a folder tree."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural_key)
        yield from clips_among(place, names, place)


def clips_of_pattern(pattern: Path) -> Iterator[str]:
    """Do the same for a pattern: its videos, its folders, and its frames by their folder."""
    found = sorted(glob(str(pattern), recursive=True), key=natural_key)  # noqa: PTH207
    folders = dict.fromkeys(name for name in found if Path(name).is_dir())
    yield from folders
    frames = f"/{pattern.name}" if has_magic(pattern.name) else ""
    yield from clips_by_folder((name for name in found if name not in folders), frames)


def clips_by_folder(files: Iterable[str], frames: str = "") -> Iterator[str]:
    """Do the same for files; `frames` is added to the folder of images."""
    folders = defaultdict(list)
    for file in files:
        folder, _, name = file.replace(os.sep, "/").rpartition("/")
        folders[folder].append(name)
    for folder in sorted(folders, key=natural_key):
        yield from clips_among(folder, folders[folder], folder + frames)


def clips_among(folder: str, names: Iterable[str], frames: str) -> Iterator[str]:
    """The videos of a folder one by one, then its images as one clip, called `frames`."""
    shown = sorted((name for name in names if not name.startswith(".")), key=natural_key)
    yield from (f"{folder}/{name}" for name in shown if name.lower().endswith(VIDEO_SUFFIXES))
    if sum(name.lower().endswith(IMAGE_SUFFIXES) for name in shown) > 1:
        yield frames


def count_frames(clip: str) -> int | None:
    """How many frames a clip has, as far as its files state it without decoding."""
    path = Path(clip)
    if path.is_dir() or has_magic(clip):
        return len(_files(clip))
    try:
        return read_video_file(path).stated
    except (InputError, OSError):
        return None
