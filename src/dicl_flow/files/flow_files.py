"""Reads and writes flow files.

In memory a flow is (H, W, 2) float32, x first, in pixels; NaN marks unknown flow.
"""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from ..errors import InputError, unknown_name
from .arrays import Array, decode_npy, decode_npz, encode_npy, encode_npz
from .atomic import write_files
from .exr import decode_st_map, decode_vectors, encode_half, encode_st_map, encode_vectors, openexr
from .images import decode_pixels
from .reading import check_size, most_bytes, read_bytes

FLO_MAGIC = b"PIEH"  # 202021.25 as a little-endian float
_FLO_UNKNOWN = 1e10  # Middlebury: components beyond 1e9 are unknown
_FLO_LIMIT = 1e9
_MAX_SIDE = 99_999
_KITTI_SCALE, _KITTI_ZERO = 64.0, 32768


class FlowFormat(NamedTuple):
    """Decoder and encoder of one file format."""

    decode: Callable[[bytes], Array]
    encode: Callable[[Array], bytes]


def read_flow(path: str | Path) -> Array:
    """Read a .flo, .pfm, .png (KITTI), .npz, .npy or .exr file: (H, W, 2) float32, NaN: unknown."""
    _format_of(path)  # a file of unknown format is not opened
    return decode_flow(path, read_bytes(path, most_bytes()))


def decode_flow(path: str | Path, data: bytes) -> Array:
    """Return the flow in the bytes of a file named `path`, as `read_flow` does."""
    flow_format = _format_of(path)
    try:
        return _checked(flow_format.decode(data))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def write_flow(path: str | Path, flow: Array) -> None:
    """Write (H, W, 2) flow in the format of the file extension, atomically."""
    write_files({Path(path): encode_flow(path, flow)})


def encode_flow(path: str | Path, flow: Array) -> bytes:
    """Return the bytes that `write_flow` writes to `path`."""
    flow_format = _format_of(path)
    try:
        return flow_format.encode(_checked(np.asarray(flow)))
    except InputError as error:
        raise InputError(f"cannot write {path}: {error}") from None


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


def _format_of(path: str | Path) -> FlowFormat:
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
    if data[:4] != FLO_MAGIC:
        raise InputError(f"not a .flo file: it starts with {data[:4]!r}, expected {FLO_MAGIC!r}")
    if len(data) < 12:
        raise InputError(f"truncated .flo file: {len(data)} bytes, but the header has 12")
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
    return FLO_MAGIC + struct.pack("<ii", width, height) + known.astype("<f4").tobytes()


def decode_pfm(data: bytes) -> Array:
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
    values = decode_pfm(data)
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
        raise InputError(
            f"{kind} file: {shape[1]}x{shape[0]} needs {expected} bytes of data, got {len(data)}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _decode_kitti(data: bytes) -> Array:
    raw = decode_pixels(data, cv2.IMREAD_UNCHANGED)
    if raw is None:
        raise InputError("not a PNG file, or damaged")
    if raw.dtype != np.uint16 or raw.ndim != 3 or raw.shape[2] != 3:
        raise InputError("a KITTI flow file is a 16-bit RGB PNG; this is an ordinary picture")
    valid, v, u = raw[..., 0], raw[..., 1], raw[..., 2]  # OpenCV returns BGR
    flow = (np.stack([u, v], -1).astype(np.float32) - _KITTI_ZERO) / _KITTI_SCALE
    flow[valid == 0] = np.nan
    return flow


def _encode_kitti(flow: Array) -> bytes:
    valid = np.all(np.isfinite(flow), axis=2)
    raw = np.rint(np.where(valid[..., None], flow, 0).astype(np.float64) * _KITTI_SCALE)
    raw += _KITTI_ZERO
    if raw.min() < 0 or raw.max() > 65535:
        worst = np.nanmax(np.abs(flow))
        raise InputError(
            f"a KITTI PNG can store motion from -512 to 511.98 px, this flow has {worst:.1f}; "
            f"use .flo"
        )
    raw[~valid] = 0
    image = np.dstack([valid, raw[..., 1], raw[..., 0]]).astype(np.uint16)
    return bytes(cv2.imencode(".png", image)[1])


_FORMATS: dict[str, FlowFormat] = {
    ".flo": FlowFormat(_decode_flo, _encode_flo),
    ".pfm": FlowFormat(_decode_pfm_flow, _encode_pfm),
    ".png": FlowFormat(_decode_kitti, _encode_kitti),
    ".npz": FlowFormat(decode_npz, encode_npz),
    ".npy": FlowFormat(decode_npy, encode_npy),
    ".half.exr": FlowFormat(decode_vectors, encode_half),
    ".st.exr": FlowFormat(decode_st_map, encode_st_map),
    ".exr": FlowFormat(decode_vectors, encode_vectors),  # after those that end in it
}
FLOW_SUFFIXES = tuple(_FORMATS)


_DECODERS = {".npy": decode_npy, ".pfm": decode_pfm}


def read_disparity(path: str | Path) -> Array:
    """Read a .pfm or .npy disparity map: (H, W) float32 in pixels, NaN where unknown."""
    suffix = Path(path).suffix.lower()
    if suffix not in _DECODERS:
        raise InputError(f"{path}: {unknown_name('disparity file extension', suffix, _DECODERS)}")
    try:
        disparity = _DECODERS[suffix](read_bytes(path, most_bytes()))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if disparity.ndim != 2 or not disparity.size:
        raise InputError(f"{path}: a disparity map must have the shape (height, width)")
    disparity = disparity.astype(np.float32)
    return np.where(np.isfinite(disparity), disparity, np.float32(np.nan))
