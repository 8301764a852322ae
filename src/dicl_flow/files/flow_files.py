"""Reads and writes flow files, and numpy's arrays; headers are checked before memory is allocated.

In memory a flow is (H, W, 2) float32, x first, in pixels, y down; NaN marks unknown flow. In
OpenEXR files y points up, as in Nuke, Fusion and Blender.
"""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO

import cv2
import numpy as np
from numpy.lib import format as npy

from ..errors import InputError, counted, refusing, unknown_name
from .atomic import write_files
from .exr import decode_channels, encode_channels, openexr
from .hdf5 import decode_dataset, encode_dataset, h5py
from .images import decode_png
from .reading import Array, check_pixels, check_size, most_bytes, read_bytes

_FLO_MAGIC = b"PIEH"  # 202021.25 as a little-endian float
_FLO_LIMIT, _FLO_UNKNOWN = 1e9, 1e10  # Middlebury: components beyond the limit are unknown
_MAX_SIDE = 99_999
_KITTI_SCALE, _KITTI_ZERO = 64.0, 32768


def read_flow(path: str | Path) -> Array:
    """Read .flo, .pfm, .png (KITTI), .npz, .npy, .flo5 or .exr: (H, W, 2) float32, NaN: unknown."""
    _format_of(path)  # a file of unknown format is not opened
    return decode_flow(path, read_bytes(path, most_bytes()))


def decode_flow(path: str | Path, data: bytes) -> Array:
    """Return the flow in the bytes of a file named `path`, as `read_flow` does."""
    decode, _ = _format_of(path)
    with refusing(str(path), InputError):
        return _checked(decode(data))


def write_flow(path: str | Path, flow: Array) -> None:
    """Write (H, W, 2) flow in the format of the file extension, atomically."""
    write_files({Path(path): encode_flow(path, flow)})


def encode_flow(path: str | Path, flow: Array) -> bytes:
    """Return the bytes that `write_flow` writes to `path`."""
    _, encode = _format_of(path)
    with refusing(f"cannot write {path}", InputError):
        return encode(_checked(np.asarray(flow)))


def flow_suffix(path: str | Path) -> str:
    """Return the extension of a flow file, such as .flo or .st.exr; "" if it is none."""
    name = Path(path).name.lower()
    return next((suffix for suffix in _FORMATS if name.endswith(suffix)), "")


def check_flow_name(path: str | Path) -> None:
    """Refuse, before any work is done, an extension that `encode_flow` does not support here."""
    if not (suffix := flow_suffix(path)):
        raise InputError(f"{path}: flow files must end in {', '.join(_FORMATS)}")
    if suffix.endswith(".exr"):
        openexr()
    elif suffix == ".flo5":
        h5py()


def _format_of(path: str | Path) -> tuple[Callable[[bytes], Array], Callable[[Array], bytes]]:
    if not (suffix := flow_suffix(path)):
        given = Path(path).suffix.lower()
        raise InputError(f"{path}: {unknown_name('flow file extension', given, _FORMATS)}")
    return _FORMATS[suffix]


def _checked(flow: Array) -> Array:
    """Return a flow as float32 with both components NaN where either is; refuse anything else."""
    if flow.ndim != 3 or flow.shape[2] != 2 or not flow.size:
        raise InputError(f"a flow must have the shape (height, width, 2), got {flow.shape}")
    if flow.dtype.kind not in "fiu":
        raise InputError(f"a flow must contain real numbers, got {flow.dtype}")
    flow = flow.astype(np.float32)
    if np.isinf(flow).any():
        raise InputError("the flow contains infinite values; use NaN where it is unknown")
    flow[_either(np.isnan(flow))] = np.nan
    return flow


def _either(mask: Array) -> Array:
    """(H, W, 2) -> (H, W): where either component is set; faster than np.any on a short axis."""
    return mask[..., 0] | mask[..., 1]


def _decode_flo(data: bytes) -> Array:
    if data[:4] != _FLO_MAGIC:
        raise InputError(f"not a .flo file: it starts with {data[:4]!r}, expected {_FLO_MAGIC!r}")
    if len(data) < 12:
        raise InputError(
            f"truncated .flo file: {counted(len(data), 'byte')}, but the header has 12"
        )
    width, height = struct.unpack("<ii", data[4:12])
    if not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        raise InputError(f"invalid .flo size: {width}x{height}")
    check_size(width, height)
    flow = _floats(data[12:], "<f4", (height, width, 2)).copy()
    flow[_either(np.abs(flow) > _FLO_LIMIT)] = np.nan
    return flow


def _encode_flo(flow: Array) -> bytes:
    if (np.abs(flow) > _FLO_LIMIT).any():
        raise InputError(f".flo files mark values beyond {_FLO_LIMIT:g} as unknown; use NaN")
    known = np.where(np.isnan(flow), np.float32(_FLO_UNKNOWN), flow)
    height, width = flow.shape[:2]
    return _FLO_MAGIC + struct.pack("<ii", width, height) + known.astype("<f4").tobytes()


def _decode_pfm(data: bytes) -> Array:
    """Bytes of a .pfm file -> (H, W, 3) or, for a one-channel file, (H, W) float32."""
    header = re.match(rb"(PF|Pf)\s+(\d{1,6})\s+(\d{1,6})\s+([-+0-9.eE]{1,32})(\r?\n|\s)", data)
    if header is None:
        raise InputError("not a .pfm file: expected 'PF', width, height and scale")
    width, height = int(header[2]), int(header[3])
    try:
        scale = float(header[4])
    except ValueError:
        scale = 0.0
    if not scale or not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        raise InputError(f"invalid .pfm header: {header[0]!r}")
    check_size(width, height)
    shape = (height, width, 3) if header[1] == b"PF" else (height, width)
    values = _floats(data[header.end() :], "<f4" if scale < 0 else ">f4", shape)
    return values[::-1].astype(np.float32)  # rows are stored bottom to top


def _decode_pfm_flow(data: bytes) -> Array:
    values = _decode_pfm(data)
    if values.ndim == 2:
        raise InputError("a one-channel .pfm file ('Pf') is not a flow file; expected 'PF'")
    return values[..., :2].copy()


def _encode_pfm(flow: Array) -> bytes:
    height, width = flow.shape[:2]
    values = np.concatenate([flow, np.zeros((height, width, 1), np.float32)], 2)
    return f"PF\n{width} {height}\n-1.0\n".encode() + values[::-1].astype("<f4").tobytes()


def _floats(data: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    expected = 4 * int(np.prod(shape))
    if len(data) != expected:
        kind = "truncated" if len(data) < expected else "overlong"
        size = f"{shape[1]}x{shape[0]} needs {expected} bytes of data, got {len(data)}"
        raise InputError(f"{kind} file: {size}")
    return np.frombuffer(data, dtype).reshape(shape)


def _decode_kitti(data: bytes) -> Array:
    raw = decode_png(data, np.uint16, 3, "a KITTI flow file is a 16-bit RGB PNG")
    flow = (raw[..., :2].astype(np.float32) - _KITTI_ZERO) / _KITTI_SCALE
    flow[raw[..., 2] == 0] = np.nan
    return flow


def _encode_kitti(flow: Array) -> bytes:
    valid = np.all(np.isfinite(flow), axis=2)
    raw = np.rint(np.where(valid[..., None], flow, 0).astype(np.float64) * _KITTI_SCALE)
    raw += _KITTI_ZERO
    if raw.min() < 0 or raw.max() > 65535:
        limits, worst = "motion from -512 to 511.98 px", np.nanmax(np.abs(flow))
        raise InputError(f"a KITTI PNG can store {limits}, this flow has {worst:.1f}; use .flo")
    raw[~valid] = 0
    image = np.dstack([valid, raw[..., 1], raw[..., 0]]).astype(np.uint16)
    return bytes(cv2.imencode(".png", image)[1])


_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_DAMAGED: tuple[type[Exception], ...] = (  # what numpy raises for invalid headers
    *(ValueError, TypeError, LookupError, AttributeError, EOFError, OSError, SyntaxError),
    *(TokenError, RecursionError, MemoryError),
)
_DAMAGED_ARCHIVE = (*_DAMAGED, zipfile.BadZipFile, zlib.error, RuntimeError)  # if encrypted
_NO_NUMBERS = "not a .npy file of numbers"


def decode_npy(data: bytes) -> Array:
    """Return the array of a .npy file, without unpickling."""
    if data[:2] == b"PK":
        raise InputError("this is a .npz archive; rename it to .npz")
    return _read_array(io.BytesIO(data), len(data))


def read_npy(path: str | Path) -> Array:
    """Read a .npy file, without unpickling."""
    data = read_bytes(path)
    with refusing(str(path), InputError):
        return decode_npy(data)


def encode_npy(array: Array) -> bytes:
    """Return the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a .npz file with these arrays."""
    buffer = io.BytesIO()
    # not with allow_pickle=False, which numpy 2.0 would store as an array
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def decode_arrays(
    data: bytes, names: Collection[str], *, any_single: bool = False
) -> dict[str, Array]:
    """Return these arrays of a .npz file, without unpickling; a missing one is an error.

    With `any_single`, the only array of a file may have any name.
    """
    with (
        refusing("not a .npz archive of numeric arrays", *_DAMAGED_ARCHIVE),
        zipfile.ZipFile(io.BytesIO(data)) as archive,
    ):
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if any_single and len(entries) == 1:
            entries = dict(zip(names, entries.values(), strict=True))
        if missing := [repr(name) for name in names if name not in entries]:
            there = ", ".join(entries) or "nothing"
            raise InputError(f"no array named {' or '.join(missing)}; it contains {there}")
        arrays = {}
        for name in names:
            with archive.open(entries[name]) as stream:
                arrays[name] = _read_array(stream, entries[name].file_size)
        return arrays


def _read_array(stream: IO[bytes], length: int) -> Array:
    with refusing(_NO_NUMBERS, *_DAMAGED):
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise InputError(f"a .npy file of version {version} does not contain plain numbers")
        shape, by_columns, dtype = _HEADERS[version](stream)
    plain = all(type(side) is int and side >= 0 for side in shape)  # numpy lets True pass
    if dtype.kind not in "biufc" or not plain:
        raise InputError(f"{_NO_NUMBERS}: it has type {dtype} and shape {shape}")
    values, there = prod(shape), length - stream.tell()
    check_pixels(values // 2 if len(shape) == 3 else values, f"an array of shape {shape}")
    expected = values * dtype.itemsize
    data = stream.read(expected) if there >= expected else b""
    if len(data) < expected:
        raise InputError(f"truncated file: shape {shape} needs {expected} bytes, got {there}")
    flat = np.frombuffer(data, dtype) if values else np.empty(0, dtype)
    with refusing(_NO_NUMBERS, ValueError):  # nothing, in a shape that numpy cannot count
        return flat.reshape(shape, order="F" if by_columns else "C")


_VECTORS = ("forward.u", "forward.v")  # motion in px: right, and up; float32 or half precision
_ST_MAP = ("R", "G")  # where to sample frame 2 to get frame 1, from 0 (left, lower border) to 1
_UP = np.array([1, -1], np.float32)


def _decode_vectors(data: bytes) -> Array:
    with np.errstate(invalid="ignore"):  # a NaN that signals
        return _decode_channels(data, _VECTORS) * _UP


def _decode_st_map(data: bytes) -> Array:
    """Return the flow in an ST map, to about 1e-4 px."""
    samples = _decode_channels(data, _ST_MAP).astype(np.float64)
    centres, scale = _st_grid(samples)
    return ((samples - [0, 1]) * scale - centres).astype(np.float32)


def _encode_vectors(flow: Array) -> bytes:
    return _encode_exr(flow * _UP, _VECTORS)


def _encode_half(flow: Array) -> bytes:
    most = np.nanmax(np.abs(flow), initial=0)
    if most > np.finfo(np.float16).max:
        raise InputError(f"half precision holds up to 65504 px, this flow has {most:g}; use .exr")
    return _encode_exr((flow * _UP).astype(np.float16), _VECTORS)


def _encode_st_map(flow: Array) -> bytes:
    """Return the bytes of an ST map; float32: half has steps of 1 px at a width of 2048."""
    centres, scale = _st_grid(flow)
    samples = (flow + centres) / scale + [0, 1]
    return _encode_exr(samples.astype(np.float32), _ST_MAP)


def _st_grid(flow: Array) -> tuple[Array, Array]:
    """Return each pixel's centre in px, (H, W, 2), and the px of one unit of an ST map."""
    height, width = flow.shape[:2]
    centres = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    return np.stack(centres, -1), np.array([width, -height])


def _encode_exr(values: Array, names: tuple[str, str]) -> bytes:
    channels = {name: values[..., i] for i, name in enumerate(names)}
    if names == _ST_MAP:
        channels["B"] = np.zeros_like(channels["R"])  # some programs refuse a picture without
    return encode_channels(channels)


def _decode_channels(data: bytes, names: tuple[str, str]) -> Array:
    found = decode_channels(data, names, "flow file", (2, "two as one flow"))
    if found.data != found.display:
        area = f"{[*found.data]} of {[*found.display]} (left, top, right, bottom)"
        raise InputError(f"the pixels cover {area}; write the file without cropping")
    return np.stack([found.pixels[name] for name in names], -1).astype(np.float32)


_FORMATS: dict[str, tuple[Callable[[bytes], Array], Callable[[Array], bytes]]] = {
    ".flo": (_decode_flo, _encode_flo),
    ".pfm": (_decode_pfm_flow, _encode_pfm),
    ".png": (_decode_kitti, _encode_kitti),
    ".npz": (
        lambda data: decode_arrays(data, ["flow"], any_single=True)["flow"],
        lambda flow: encode_arrays({"flow": flow}),
    ),
    ".npy": (decode_npy, encode_npy),
    ".flo5": (
        lambda data: decode_dataset(data, "flow"),
        lambda flow: encode_dataset("flow", flow),
    ),
    ".half.exr": (_decode_vectors, _encode_half),
    ".st.exr": (_decode_st_map, _encode_st_map),
    ".exr": (_decode_vectors, _encode_vectors),  # after those that end in it
}
FLOW_SUFFIXES = tuple(_FORMATS)
_DISPARITIES = {".npy": decode_npy, ".pfm": _decode_pfm}


def read_disparity(path: str | Path) -> Array:
    """Read a .pfm or .npy disparity map: (H, W) float32 in pixels, NaN where unknown."""
    suffix = Path(path).suffix.lower()
    if suffix not in _DISPARITIES:
        error = unknown_name("disparity file extension", suffix, _DISPARITIES)
        raise InputError(f"{path}: {error}")
    data = read_bytes(path, most_bytes())
    with refusing(str(path), InputError):
        disparity = _DISPARITIES[suffix](data).astype(np.float32)
    if disparity.ndim != 2 or not disparity.size:
        raise InputError(f"{path}: a disparity map must have the shape (height, width)")
    return np.where(np.isfinite(disparity), disparity, np.float32(np.nan))
