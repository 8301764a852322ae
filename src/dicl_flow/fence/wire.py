"""Messages between a process and its decoders: plain values, arrays and open files.

Nothing is unpickled: a decoder that was taken over can send wrong pictures, but no code. A message
is its length and the number of bytes that follow it, JSON, and the bytes of its arrays.
"""

import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_LENGTHS = Struct(">IQ")
_MOST_TEXT = 2**22  # bytes of JSON
_MOST_FILES = 4
_PIECE = 2**20
_DTYPE = re.compile(r"[<>|][biuf][1248]")


class BrokenLineError(Exception):
    """The other end is gone, or sends what is no message."""


class Line:
    """One end of a connection; both ends send in turn."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def send(
        self, value: Any, seconds: float | None = None, descriptors: Sequence[int] = ()
    ) -> None:
        """Send a value, and open files; a `Path` is opened here, and its file sent."""
        bodies: list[memoryview[int]] = []
        paths: list[Path] = []
        text = json.dumps(_packed(value, bodies, paths)).encode()
        head = _LENGTHS.pack(len(text), sum(body.nbytes for body in bodies))
        files = [os.open(path, os.O_RDONLY) for path in paths]
        try:
            self._wait_at_most(seconds)
            socket.send_fds(self._end, [head], [*files, *descriptors])
            self._end.sendall(text)
            for body in bodies:
                self._end.sendall(body)
        except OSError as error:
            raise _broken(error) from None
        finally:
            for file in files:
                os.close(file)

    def receive(self, most: int = 0, seconds: float | None = None) -> Any:
        """Return the next value, with at most `most` bytes of arrays; sent files are dropped."""
        end = None if seconds is None else monotonic() + seconds
        return self._rest(self._bytes(_LENGTHS.size, end), most, end)

    def receive_files(self, most: int) -> tuple[Any, list[int]]:
        """Do the same without a deadline; also return the descriptors that came with it."""
        self._wait_at_most(None)
        head, files, _, _ = socket.recv_fds(self._end, _LENGTHS.size, _MOST_FILES)
        if not head:
            raise BrokenLineError
        head += self._bytes(_LENGTHS.size - len(head), None)
        return self._rest(head, most, None), files

    def _wait_at_most(self, seconds: float | None) -> None:
        if self._end.gettimeout() != seconds:  # a system call that a decoder may not make
            self._end.settimeout(seconds)

    def _rest(self, head: "bytes | memoryview[int]", most: int, end: float | None) -> Any:
        length, follow = _LENGTHS.unpack(head)
        if length > _MOST_TEXT or follow > most:
            raise BrokenLineError
        try:
            packed = json.loads(bytes(self._bytes(length, end)))
            return _unpacked(packed, _Bodies(follow, lambda size: self._bytes(size, end)))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise BrokenLineError from None

    def _bytes(self, size: int, end: float | None) -> "memoryview[int]":
        # takes memory as bytes arrive, however many are announced
        data, place = memoryview(np.empty(size, np.uint8)), 0
        try:
            while place < size:
                left = None if end is None else end - monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._wait_at_most(left)
                arrived = self._end.recv_into(data[place : place + _PIECE])
                if not arrived:
                    raise BrokenLineError
                place += arrived
        except OSError as error:
            raise _broken(error) from None
        return data


def _broken(error: OSError) -> Exception:
    return TimeoutError() if isinstance(error, TimeoutError) else BrokenLineError()


class _Bodies:
    """The bytes that follow the text, taken in order."""

    def __init__(self, size: int, take: "Callable[[int], memoryview[int]]") -> None:
        self._left, self._take = size, take

    def __call__(self, size: int) -> "memoryview[int]":
        if not 0 <= size <= self._left:
            raise ValueError
        self._left -= size
        return self._take(size)


def _packed(value: Any, bodies: "list[memoryview[int]]", paths: list[Path]) -> Any:
    """Return a value as JSON, without the bytes of arrays."""

    def each(values: Any) -> list[Any]:
        return [_packed(item, bodies, paths) for item in values]

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        whole = np.ascontiguousarray(value)
        if whole.size:  # an empty one has no view
            bodies.append(memoryview(whole.data).cast("B"))
        return {"array": [whole.dtype.str, list(value.shape)]}
    if isinstance(value, bytes | bytearray):
        bodies.append(memoryview(value))
        return {"bytes": len(value)}
    if isinstance(value, Path):
        paths.append(value)
        return {"path": str(value)}
    if isinstance(value, dict):
        return {"dict": [[key, *each([item])] for key, item in value.items()]}
    return {"tuple": each(value)} if isinstance(value, tuple) else each(value)


def _unpacked(value: Any, bodies: _Bodies) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, bodies) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _KINDS[kind](content, bodies)


def _array(content: Any, bodies: _Bodies) -> Array:
    name, shape = content
    if not _DTYPE.fullmatch(name) or len(shape) > 4 or any(side < 0 for side in shape):
        raise ValueError
    dtype = np.dtype(name)
    data = bodies(prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


def _pairs(content: Any, bodies: _Bodies) -> Iterator[tuple[str, Any]]:
    for key, item in content:
        yield str(key), _unpacked(item, bodies)


_KINDS: dict[str, Callable[[Any, _Bodies], Any]] = {
    "array": _array,
    "bytes": lambda content, bodies: bytes(bodies(int(content))),
    "path": lambda content, bodies: Path(str(content)),
    "dict": lambda content, bodies: dict(_pairs(content, bodies)),
    "tuple": lambda content, bodies: tuple(_unpacked(item, bodies) for item in content),
}
