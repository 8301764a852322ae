"""Frames of a video, one at a time: a long video never fits into memory."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import encode_image, write_files

Array = np.ndarray[Any, np.dtype[Any]]

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".gif")


def is_video(path: Path) -> bool:
    """Whether the name is that of a video file."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def video_frames(path: Path) -> Iterator[Array]:
    """Decode the frames of a video in turn: (H, W, 3) uint8 RGB."""
    try:
        import av
    except ImportError:
        raise InputError("videos need PyAV: pip install 'dicl-flow[video]'") from None
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError(f"{path} holds no pictures")
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
    except av.FFmpegError as error:
        raise InputError(f"{path} cannot be decoded as a video: {error.strerror}") from None


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
