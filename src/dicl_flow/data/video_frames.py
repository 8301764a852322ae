"""Frames of a video, one at a time: a long video never fits into memory."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import Array, encode_image, write_files
from ..files.sizes import check_size

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".gif")
CAMERA = "camera:"


def is_video(path: Path) -> bool:
    """Whether the name is that of a video file."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def check_source(text: str) -> None:
    """Refuse, without opening it, what is no video, folder, pattern of frames or camera."""
    pattern = any(sign in text for sign in "*?[")
    path = Path(text)
    if not (text.startswith(CAMERA) or pattern or path.is_dir() or path.is_file()):
        raise FileNotFoundError(f"no video, folder or camera {text}; a camera is {CAMERA}0")


def pyav() -> Any:
    """Return the module `av`, or name the extra it is in."""
    try:
        import av
    except ImportError:
        raise InputError("videos need PyAV: pip install 'dicl-flow[video]'") from None
    return av


@contextmanager
def open_video(path: Path) -> Iterator[Any]:
    """Open a video for reading; what goes wrong with it within is an error that names it."""
    av = pyav()
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError(f"{path} holds no pictures")
            stream = container.streams.video[0]
            _check_size(path, stream)
            stream.thread_type = "AUTO"
            yield container
    except av.FFmpegError as error:
        raise InputError(f"{path} cannot be decoded as a video: {error.strerror}") from None


def _check_size(path: Path, stream: Any) -> None:
    try:
        check_size(stream.width, stream.height)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def video_frames(path: Path) -> Iterator[Array]:
    """Decode the frames of a video in turn: (H, W, 3) uint8 RGB."""
    with open_video(path) as container:
        for frame in container.decode(video=0):
            yield to_array(frame)


def to_array(frame: Any) -> Array:
    """A decoded frame -> (H, W, 3) uint8 RGB, upright as the camera was held."""
    image = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))


def extract_frames(video: Path) -> Path:
    """Write the frames as frame_000001.png, … into a temporary folder, removed at exit.

    It lies where TMPDIR says. Lossless frames take room: about 3 MB each at 1920x1080.
    """
    folder = Path(tempfile.mkdtemp(prefix="dicl-flow-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, frame in enumerate(video_frames(video), start=1):
        path = folder / f"frame_{number:06d}.png"
        write_files({path: encode_image(path, frame)})
    return folder
