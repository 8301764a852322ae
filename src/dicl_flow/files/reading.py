"""Reads files and pipes, with a limit on their size."""

import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import InputError
from .sizes import most_bytes

_CHUNK = 2**20


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Read a file, or a pipe to its end; anything missing or empty, or not a file, is an error.

    A file of more than `most` bytes is refused before it is read.
    """
    path = Path(path)
    check_file(path)
    if path.is_fifo():
        with path.open("rb") as pipe:
            return read_stream(pipe, str(path))
    size = path.stat().st_size
    if most is not None and size > most:
        raise _too_long(str(path), size)
    return _some(path.read_bytes(), str(path))


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
    while chunk := stream.read(_CHUNK):
        data += chunk
        if len(data) > most:
            raise _too_long(name, len(data))
    return _some(bytes(data), name)


def _some(data: bytes, name: str) -> bytes:
    if not data:
        raise InputError(f"{name} is empty (0 bytes)")
    return data


def _too_long(name: str, size: int) -> InputError:
    return InputError(
        f"{name} has at least {size:,} bytes; the largest image or flow within `max_size` has "
        f"{most_bytes():,}"
    )
