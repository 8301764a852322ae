"""Reads files and pipes; sizes in bytes and pixels are limited before memory is allocated."""

import os
import stat
from math import ceil, isfinite
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import InputError
from ..fence import interpreting

Array = np.ndarray[Any, np.dtype[Any]]

_DEFAULT = 150.0  # megapixels; a frame of 16K has 133
_VARIABLE = "DICL_FLOW_MAX_SIZE"  # an environment variable, so that loader processes inherit it
_BYTES_PER_PIXEL = 16  # two float64 of a flow, or four float32 of an image


def max_size() -> float:
    """Return the largest size of images and flows that are read, in megapixels."""
    return _checked(os.environ.get(_VARIABLE, _DEFAULT))


def set_max_size(megapixels: float) -> None:
    """Set the largest size of images and flows that are read, also in processes started later.

    Larger ones are refused, because a small file can decode to an image that fills the memory. The
    environment variable DICL_FLOW_MAX_SIZE does the same.
    """
    os.environ[_VARIABLE] = str(_checked(megapixels))


def _checked(megapixels: float | str) -> float:
    try:
        value = float(megapixels)
    except ValueError:
        value = 0.0
    if not (value > 0 and isfinite(value)):
        wanted = "must be a number of megapixels above 0"
        raise InputError(f"`max_size` ({_VARIABLE}) {wanted}, got {megapixels!r}")
    return value


def check_size(width: int, height: int) -> None:
    """Refuse an image or a flow with more pixels than `max_size` allows."""
    check_pixels(width * height, f"{width}x{height}")


def check_pixels(pixels: int, what: str) -> None:
    """Refuse a number of pixels that `max_size` does not allow; the error starts with `what`."""
    limit = max_size()
    if pixels > 10**15:
        raise InputError(f"{what} has more pixels than any machine can hold")
    if pixels > limit * 1e6:
        size, most = (f"{n:,.0f}" if n >= 10 else f"{n:.3g}" for n in (pixels / 1e6, limit))
        more = f"allow more with `max_size={ceil(pixels / 1e6)}`"
        raise InputError(f"{what} has {size} megapixels, the limit is {most}; {more}")


def check_decoded(answer: Array) -> None:
    """Refuse an answer of a decoder that is no picture, or larger than any it may read."""
    with interpreting():
        height, width, *channels = answer.shape
        # of a video, twice the limit is decoded: coded frames have borders
        sound = channels in ([], [1], [2], [3], [4]) and answer.dtype.kind in "uif"
        if not (sound and 0 < height * width <= 2e6 * max_size()):
            raise TypeError


def most_bytes() -> int:
    """Return the size in bytes of the largest file that `max_size` allows."""
    return int(max_size() * 1e6) * _BYTES_PER_PIXEL + 2**20  # plus headers


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Read a file of at most `most` bytes, or a pipe; what is missing or empty is an error."""
    path = Path(path)
    check_file(path)
    if path.is_fifo():
        with path.open("rb") as pipe:
            return read_stream(pipe, str(path))
    size = path.stat().st_size
    if most is not None and size > most:
        raise _too_long(str(path), size)
    return _not_empty(path.read_bytes(), str(path))


def check_file(path: Path) -> None:
    """Refuse, without reading, a path that is missing, a folder or a device."""
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError(f"{path} is a folder; expected a file")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError(f"{path} is a device, which may never end; expected a file or a pipe")


def read_stream(stream: BinaryIO, name: str) -> bytes:
    """Read an image or a flow from a stream to its end; refuse more than the largest allowed."""
    most, data = most_bytes(), bytearray()
    while chunk := stream.read(2**20):
        data += chunk
        if len(data) > most:
            raise _too_long(name, len(data))
    return _not_empty(bytes(data), name)


def _not_empty(data: bytes, name: str) -> bytes:
    if not data:
        raise InputError(f"{name} is empty (0 bytes)")
    return data


def _too_long(name: str, size: int) -> InputError:
    largest = f"the largest image or flow within `max_size` has {most_bytes():,}"
    return InputError(f"{name} has at least {size:,} bytes; {largest}")
