"""Reads and writes OpenEXR flow files: motion vectors or ST maps, as compositing programs use them.

In these files y points up, as in Nuke, Fusion and Blender; everywhere else in this package, down.
"""

import io
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import numpy as np

from ..errors import InputError
from .arrays import Array
from .reading import check_pixels, check_size

VECTORS = ("forward.u", "forward.v")
"""Motion in px: right, and up. In float32, or in half precision."""
ST_MAP = ("R", "G")
"""Where to sample frame 2, from 0 (left or lower border) to 1; the result looks like frame 1."""

_UP = np.array([1, -1], np.float32)


def openexr() -> Any:
    """Return the module `OpenEXR`; if it is missing, the error names the extra to install."""
    try:
        import OpenEXR
    except ImportError:
        raise InputError(".exr files need OpenEXR: pip install 'dicl-flow[exr]'") from None
    return OpenEXR


def decode_vectors(data: bytes) -> Array:
    """Return the flow in a file with the channels `VECTORS`."""
    with np.errstate(invalid="ignore"):  # a NaN that signals
        return _decode(data, VECTORS) * _UP


def decode_st_map(data: bytes) -> Array:
    """Return the flow in an ST map, to about 1e-4 px."""
    samples = _decode(data, ST_MAP).astype(np.float64)
    return ((samples - [0, 1]) * _scale(samples) - _centres(samples)).astype(np.float32)


def encode_vectors(flow: Array) -> bytes:
    """Return the bytes of a file with the channels `VECTORS`, float32."""
    return _encode(flow * _UP, VECTORS)


def encode_half(flow: Array) -> bytes:
    """Return the bytes of a file with the channels `VECTORS` in half precision."""
    most = np.nanmax(np.abs(flow), initial=0)
    if most > np.finfo(np.float16).max:
        raise InputError(f"half precision holds up to 65504 px, this flow has {most:g}; use .exr")
    return _encode((flow * _UP).astype(np.float16), VECTORS)


def encode_st_map(flow: Array) -> bytes:
    """Return the bytes of an ST map; float32: half has steps of 1 px at a width of 2048."""
    samples = (flow + _centres(flow)) / _scale(flow) + [0, 1]
    return _encode(samples.astype(np.float32), ST_MAP)


def _centres(flow: Array) -> Array:
    """Return the position of each pixel's centre in px, (H, W, 2)."""
    height, width = flow.shape[:2]
    return np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), -1)


def _scale(flow: Array) -> Array:
    """Return the px that one unit of an ST map is in x and in y, which points up."""
    height, width = flow.shape[:2]
    return np.array([width, -height])


def _encode(values: Array, names: tuple[str, str]) -> bytes:
    library = openexr()
    buffer = io.BytesIO()
    channels = {name: np.ascontiguousarray(values[..., i]) for i, name in enumerate(names)}
    if names == ST_MAP:
        channels["B"] = np.zeros_like(channels["R"])  # some programs refuse a picture without
    header = {"compression": library.ZIP_COMPRESSION, "type": library.scanlineimage}
    library.File(header, channels).write(buffer)
    return buffer.getvalue()


def _decode(data: bytes, names: tuple[str, str]) -> Array:
    """Return two channels of a file as (H, W, 2) float32."""
    read = partial(openexr().File, separate_channels=True)
    try:
        headers = [part.header for part in read(io.BytesIO(data), header_only=True).parts]
        index = _chosen(headers, names)
        with redirect_stdout(io.StringIO()) as complaint:  # damaged parts are printed and left out
            parts = read(io.BytesIO(data)).parts
        if len(parts) < len(headers):
            raise InputError(f"damaged or truncated: {complaint.getvalue().strip()}")
        channels = parts[index].channels
        return np.stack([channels[name].pixels for name in names], -1).astype(np.float32)
    except InputError:
        raise
    except Exception as error:  # the library documents none for damaged files
        raise InputError(f"it cannot be read as an OpenEXR flow file: {error}") from None


def _chosen(headers: list[dict[str, Any]], names: tuple[str, str]) -> int:
    """Return the first part with these channels; refuse sizes before pixels are read."""
    found = [[channel.name for channel in header["channels"]] for header in headers]
    index = next((i for i, there in enumerate(found) if {*names} <= {*there}), None)
    if index is None:
        there = ", ".join(sorted({name for part in found for name in part})) or "none"
        raise InputError(f"no channels {names[0]} and {names[1]}; the file has {there}")
    sizes = [_size(header["dataWindow"]) for header in headers]
    check_size(*sizes[index])
    values = sum(w * h * len(part) for (w, h), part in zip(sizes, found, strict=True))
    check_pixels(values // 2, f"all {sum(map(len, found))} channels of a file, two as one flow,")
    windows = [np.ravel(headers[index][name]).tolist() for name in ("dataWindow", "displayWindow")]
    if windows[0] != windows[1]:
        raise InputError(
            f"the pixels cover {windows[0]} of {windows[1]} (left, top, right, bottom); "
            f"write the file without cropping"
        )
    return index


def _size(window: tuple[Array, Array]) -> tuple[int, int]:
    (left, top), (right, bottom) = window
    return int(right) - int(left) + 1, int(bottom) - int(top) + 1
