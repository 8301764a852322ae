"""Sources of frames: a video, a folder or pattern of images, a camera; clips in a folder tree."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from glob import glob, has_magic
from itertools import repeat
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import cv2

from ..data.datasets import kitti_scenes
from ..data.frames import (
    CAMERA,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    check_source,
    image_files,
    natural_key,
    open_video,
    pyav,
    to_array,
)
from ..errors import InputError
from ..files import Array, read_image, to_integers, to_uint8

Stamp = dict[str, object]
LOGGING: Any = getattr(cv2.utils, "logging", cv2)  # of OpenCV 5; of OpenCV 4


class Shot(NamedTuple):
    """A frame that is not decoded yet: many are skipped."""

    name: str
    time: float | None
    """Seconds from the start; None for images, which have no time."""
    read: Callable[[], Array]
    """Returns (H, W, 3) RGB; raises an `InputError` if the frame is broken."""
    scene: str = ""
    """Flow is estimated only within a scene."""


@dataclass(frozen=True)
class Source:
    """Frames in order; each call of `shots` starts at the first frame."""

    shots: Callable[[], Iterator[Shot]]
    stamp: Stamp
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


def open_source(text: str, *, keep_depth: bool = False) -> Source:
    """Open what a user gives: a video file, a folder, a glob pattern, or camera:0.

    Frames are uint8; with `keep_depth`, 16-bit images are uint16.
    """
    check_source(text)
    if text.startswith(CAMERA):
        return _camera(text)
    path = Path(text)
    if path.is_dir():
        return images(image_files(path.iterdir()), path, keep_depth=keep_depth)
    if path.is_file():
        return video_source(path)
    files = map(Path, glob(text))  # noqa: PTH207 - Path.glob needs the folder separately
    return images(image_files(files), path, keep_depth=keep_depth)


def images(frames: list[Path], place: Path, *, keep_depth: bool = False) -> Source:
    """Frames that are image files."""
    if not frames:
        raise InputError(f"no images in {place}; frames must end in {', '.join(IMAGE_SUFFIXES)}")
    scenes = kitti_scenes(frames)
    in_depth = to_integers if keep_depth else to_uint8

    def shots() -> Iterator[Shot]:
        for file, scene in zip(frames, scenes or repeat(""), strict=False):
            yield Shot(file.stem, None, partial(_read, file, in_depth), scene)

    stamp: Stamp = {"path": str(place.resolve())}
    return Source(shots, stamp, count=len(frames), files=tuple(frames), scenes=scenes)


def _read(file: Path, in_depth: Callable[[Array], Array]) -> Array:
    return in_depth(read_image(file))


def capture(device: int | str, *, live: bool) -> Source:
    """Frames that OpenCV reads: a camera by its number, or a file."""
    level = LOGGING.getLogLevel()
    LOGGING.setLogLevel(0)  # the error is raised below
    try:
        video = cv2.VideoCapture(device)
    finally:
        LOGGING.setLogLevel(level)
    if not video.isOpened():
        raise InputError(f"OpenCV cannot open {'camera ' if live else ''}{device}")
    rate, count = video.get(cv2.CAP_PROP_FPS), video.get(cv2.CAP_PROP_FRAME_COUNT)

    def shots() -> Iterator[Shot]:
        start, number = monotonic(), 0
        while True:
            there, image = video.read()
            if not there:
                return
            time = monotonic() - start if live else number / rate
            name, number = f"frame_{number:06d}", number + 1
            yield Shot(name, time, partial(cv2.cvtColor, image, cv2.COLOR_BGR2RGB))

    stamp: Stamp = {"path": str(device)}
    return Source(shots, stamp, rate or None, int(count) if count > 0 else None, live)


def _camera(text: str) -> Source:
    number = text.removeprefix(CAMERA)
    if not number.isdecimal():
        raise InputError(f"a camera must be camera:0, camera:1 and so on, got {text!r}")
    return capture(int(number), live=True)


def video_source(path: Path, container: str | None = None) -> Source:
    """Frames of a video file; `container` as for `open_video`."""
    with open_video(path, container) as opened:
        stream = opened.streams.video[0]
        rate = float(stream.average_rate or stream.guessed_rate or 0) or None
        count = stream.frames or None
        if count is None and rate and opened.duration:
            count = round(opened.duration / 1e6 * rate)  # FFmpeg counts microseconds

    def shots() -> Iterator[Shot]:
        with open_video(path, container) as opened:
            for number, (time, read) in enumerate(_decoded(opened)):
                if time is None and rate:
                    time = number / rate
                yield Shot(f"frame_{number:06d}", time, read)

    return Source(shots, stamp(path), rate, count)


def video_from(path: Path, seconds: float) -> Source:
    """A video whose shots start at a key frame before `seconds`: the rest is not decoded.

    Shots are numbered by their time: the rate should be constant. Where the file has no index and
    the key frame is missed, all is decoded.
    """
    whole = video_source(path)

    def shots() -> Iterator[Shot]:
        with open_video(path) as container:
            stream = container.streams.video[0]
            start = float((stream.start_time or 0) * stream.time_base)
            container.seek(int(seconds / stream.time_base), stream=stream)
            decoded = _decoded(container)
            time, read = next(decoded, (None, None))
            found = time is not None and time <= seconds and whole.rate is not None
            while found and read is not None:
                number = round(((time or start) - start) * (whole.rate or 0))
                yield Shot(f"frame_{number:06d}", time, read)
                time, read = next(decoded, (None, None))
        if not found:
            yield from whole.shots()

    return replace(whole, shots=shots)


def stamp(path: Path) -> Stamp:
    """The path of a file and its change marks."""
    return {"path": str(path.resolve()), **change_marks(path)}


def change_marks(path: Path) -> Stamp:
    """Size and time of modification: they differ if the file has changed."""
    state = path.stat()
    return {"bytes": state.st_size, "modified": state.st_mtime_ns}


def _decoded(container: Any) -> Iterator[tuple[float | None, Callable[[], Array]]]:
    """Frames as they are decoded; a frame that fails raises its error when it is read."""
    errors, time = pyav().FFmpegError, None
    packets = container.demux(video=0)
    while True:
        try:
            packet = next(packets, None)  # no more packets after a demuxing error
            frames = None if packet is None else packet.decode()
        except errors as error:
            yield time, _broken(error.strerror)
            continue
        if frames is None:
            return
        for frame in frames:
            time = frame.time
            if frame.is_corrupt:
                yield time, _broken("its data are damaged")
            else:
                yield time, partial(to_array, frame)


def _broken(reason: str) -> Callable[[], Array]:
    def read() -> Array:
        raise InputError(f"cannot be decoded: {reason}")

    return read


def clips_below(folder: Path) -> Iterator[str]:
    """Yield what `open_source` takes for each clip in a folder tree."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural_key)
        yield from clips_among(place, names, place)


def clips_of_pattern(pattern: Path) -> Iterator[str]:
    """Do the same for a pattern: its videos, its folders, and its frames by their folder."""
    found = sorted(glob(str(pattern), recursive=True), key=natural_key)  # noqa: PTH207
    folders = [name for name in found if Path(name).is_dir()]
    yield from folders
    frames = f"/{pattern.name}" if has_magic(pattern.name) else ""
    yield from clips_by_folder((name for name in found if name not in {*folders}), frames)


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
        files = path.iterdir() if path.is_dir() else map(Path, glob(clip))  # noqa: PTH207
        return len(image_files(files))
    try:
        with open_video(path) as container:
            return container.streams.video[0].frames or None
    except (InputError, OSError):
        return None
