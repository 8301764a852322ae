"""Reads and writes .npy and .npz; the header is checked before memory is allocated."""

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from math import prod
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from ..errors import InputError
from .reading import check_pixels

Array = np.ndarray[Any, np.dtype[Any]]

_NUMBERS = "biufc"
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_DAMAGED: tuple[type[Exception], ...] = (
    *(ValueError, TypeError, LookupError, AttributeError, EOFError, OSError, SyntaxError),
    *(TokenError, RecursionError, MemoryError),
)
"""What numpy raises for invalid headers."""
_DAMAGED_ARCHIVE: tuple[type[Exception], ...] = (
    *_DAMAGED,
    *(zipfile.BadZipFile, zlib.error, RuntimeError),  # RuntimeError: encrypted
)


def decode_npy(data: bytes) -> Array:
    """Return the array of a .npy file, without unpickling."""
    if data[:2] == b"PK":
        raise InputError("this is a .npz archive; rename it to .npz")
    return _read_array(io.BytesIO(data), len(data))


def decode_npz(data: bytes) -> Array:
    """Return the array `flow` of a .npz file, or the only array, without unpickling."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entry = _chosen(archive)
            with archive.open(entry) as stream:
                return _read_array(stream, entry.file_size)
    except InputError:
        raise
    except _DAMAGED_ARCHIVE as error:
        raise InputError(f"not a .npz archive of numeric arrays: {error}") from None


def encode_npy(array: Array) -> bytes:
    """Return the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def encode_npz(flow: Array) -> bytes:
    """Return the bytes of a .npz file with the array `flow`."""
    return encode_arrays({"flow": flow})


def _chosen(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    name = next(iter(entries)) if len(entries) == 1 else "flow"
    if name not in entries:
        raise InputError(f"no array named 'flow' in the archive; it contains {list(entries)}")
    return entries[name]


def _read_array(stream: IO[bytes], length: int) -> Array:
    """Read an array from a stream of `length` bytes."""
    shape, by_columns, dtype = _read_header(stream)
    plain = all(type(side) is int and side >= 0 for side in shape)  # numpy lets True pass
    if dtype.kind not in _NUMBERS or not plain:
        raise InputError(f"not a .npy file of numbers: it has type {dtype} and shape {shape}")
    values, there = prod(shape), length - stream.tell()
    check_pixels(values // 2 if len(shape) == 3 else values, f"an array of shape {shape}")
    expected = values * dtype.itemsize
    data = stream.read(expected) if there >= expected else b""
    if len(data) < expected:
        raise InputError(f"truncated file: shape {shape} needs {expected} bytes, got {there}")
    flat = np.frombuffer(data, dtype) if values else np.empty(0, dtype)
    try:
        return flat.reshape(shape, order="F" if by_columns else "C")
    except ValueError as error:  # nothing, in a shape that numpy cannot count
        raise InputError(f"not a .npy file of numbers: {error}") from None


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    try:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise InputError(f"a .npy file of version {version} does not contain plain numbers")
        return _HEADERS[version](stream)
    except InputError:
        raise
    except _DAMAGED as error:
        raise InputError(f"not a .npy file of numbers: {error}") from None


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a .npz file with these arrays."""
    buffer = io.BytesIO()
    # not with allow_pickle=False, which numpy 2.0 would store as an array
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
