"""HDF5 files with one array, as Spring's .flo5; what a file claims is checked before it is read."""

import io
import zlib
from math import ceil, prod
from typing import Any

import numpy as np

from ..errors import InputError, import_extra, refusing
from ..fence import fenced, interpreting
from .reading import Array, check_pixels, most_bytes

_GZIP, _SHUFFLE = 1, 2  # the numbers that HDF5 gives these filters
_LEVEL = 5  # of gzip, as Spring's own files


def h5py() -> Any:
    """Return the library; if it is missing, the error names the extra to install."""
    return import_extra("h5py", ".flo5 files need h5py", "hdf5")


def encode_dataset(name: str, array: Array) -> bytes:
    """Return the bytes of a file with one array, compressed without loss."""
    buffer = io.BytesIO()
    with h5py().File(buffer, "w") as file:
        file.create_dataset(name, data=array, compression="gzip", compression_opts=_LEVEL)
    return buffer.getvalue()


def decode_dataset(data: bytes, name: str) -> Array:
    """Return an array of numbers; nothing that the file merely refers to is opened."""
    h5py()  # complain here if it is missing
    array = _decode_dataset(data, name)
    with interpreting():
        return array.view(np.ndarray)


@fenced(most_bytes)
def _decode_dataset(data: bytes, name: str) -> Array:
    library = h5py()
    # the library documents no errors for damaged files
    with (
        refusing("it cannot be read as an HDF5 file, or is damaged or truncated", Exception),
        library.File(io.BytesIO(data), "r") as file,
    ):
        link = file.get(name, getlink=True) if name in file else None
        if link is None:
            raise InputError(f"no array named {name!r}; it contains {[*file][:4]}")
        found = file[name] if isinstance(link, library.HardLink) else None
        if not isinstance(found, library.Dataset):
            raise InputError(f"{name!r} is not an array of this file")
        _check(found)
        return _read_chunks(found, len(data)) if found.chunks else _read_plain(found)


def _check(found: Any) -> None:
    """Refuse an array of other things than numbers, in other files, or too large."""
    if found.is_virtual or found.external:
        raise InputError("the array is stored in other files")
    if found.dtype.kind not in "fiu" or found.dtype.itemsize > 8:
        raise InputError(f"the array has the type {found.dtype}, expected numbers")
    if not found.shape:
        raise InputError("the array is empty or a single number")
    for what, shape in (("an array", found.shape), ("a chunk", found.chunks or ())):
        values = prod(map(int, shape))
        check_pixels(values // 2 if len(shape) == 3 else values, f"{what} of shape {shape}")


def _read_plain(found: Any) -> Array:
    there, expected = found.id.get_storage_size(), prod(found.shape) * found.dtype.itemsize
    if there < expected:  # HDF5 would fill the rest with zeros
        raise InputError(f"shape {found.shape} needs {expected} bytes, the file has {there}")
    return found[()]


def _read_chunks(found: Any, length: int) -> Array:
    """Decompress each chunk up to the size that it must have: HDF5 itself knows no limit."""
    plan = found.id.get_create_plist()
    stages = [plan.get_filter(place) for place in range(plan.get_nfilters())]
    filters = [number for number, *_ in stages]
    level = max((sum(values) for number, _, values, _ in stages if number == _GZIP), default=0)
    if not {*filters} <= {_GZIP, _SHUFFLE} or len(filters) > 2 or level > 9:
        raise InputError("the array is compressed by other means than gzip")
    sides = zip(found.shape, found.chunks, strict=True)
    there, expected = found.id.get_num_chunks(), prod(ceil(side / part) for side, part in sides)
    if there != expected:  # HDF5 would fill the rest with zeros
        raise InputError(f"the file has {there} of the {expected} chunks of its array")
    values = np.zeros(found.shape, found.dtype)
    for place in range(there):
        start = found.id.get_chunk_info(place)
        if start.size > length:
            raise InputError("a chunk is longer than the file")
        skipped, raw = found.id.read_direct_chunk(start.chunk_offset)
        wanted = [number for bit, number in enumerate(filters) if not skipped >> bit & 1]
        chunk = _decoded(raw, wanted, found.chunks, found.dtype)
        area = tuple(
            slice(first, first + side)
            for first, side in zip(start.chunk_offset, found.chunks, strict=True)
        )
        inside = values[area]
        inside[...] = chunk[tuple(map(slice, inside.shape))]
    return values


def _decoded(raw: bytes, filters: list[int], shape: tuple[int, ...], dtype: Any) -> Array:
    """Undo the filters of a chunk, the last one first."""
    expected = prod(shape) * dtype.itemsize
    for number in reversed(filters):
        if number == _GZIP:
            stream = zlib.decompressobj()
            raw = stream.decompress(raw, expected + 1)
            if not stream.eof:
                raise InputError(f"a chunk of shape {shape} is truncated, or longer than that")
        else:
            columns = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
            raw = np.ascontiguousarray(columns.T).tobytes()
    if len(raw) != expected:
        raise InputError(f"a chunk of shape {shape} needs {expected} bytes, got {len(raw)}")
    return np.frombuffer(raw, dtype).reshape(shape)
