"""Ground truth in the encodings that only single data sets use: read as flow, never written."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..errors import InputError, check_name, refusing
from .flow_files import decode_arrays, read_disparity, read_flow
from .images import decode_png
from .reading import Array, most_bytes, read_bytes

_KITTI_DISPARITY = 256  # steps per px
_SINTEL_DISPARITY = np.array([4, 1 / 2**6, 1 / 2**14])  # px per step of red, green and blue


def read_truth(path: Path, encoding: str = "flow") -> Array:
    """Read a file of ground truth: (H, W, 2) float32 in px, NaN where unknown.

    "flow": as `read_flow`; "disparity": as `read_disparity`, of the left frame of a rectified pair.
    Others are named after their data set. Disparity d becomes the flow (-d, 0).
    """
    check_name("encoding", encoding, ENCODINGS)
    if encoding == "flow":
        return read_flow(path)
    if encoding == "disparity":
        return _from_disparity(read_disparity(path))
    data = read_bytes(path, most_bytes())
    with refusing(str(path), InputError):
        return _DECODERS[encoding](data).astype(np.float32)


def _from_disparity(disparity: Array) -> Array:
    return np.stack([-disparity, np.where(np.isnan(disparity), disparity, 0)], -1)


def _decode_kitti_disparity(data: bytes) -> Array:
    """KITTI's 16-bit PNG: 256 times the disparity, 0 where unknown."""
    raw = decode_png(data, np.uint16, 1, "a KITTI disparity file is a 16-bit grey PNG")
    disparity = raw.astype(np.float32) / _KITTI_DISPARITY
    return _from_disparity(np.where(raw == 0, np.float32(np.nan), disparity))


def _decode_sintel_disparity(data: bytes) -> Array:
    """Sintel's 8-bit PNG: 4 red + green / 2^6 + blue / 2^14."""
    raw = decode_png(data, np.uint8, 3, "a Sintel disparity file is an 8-bit RGB PNG")
    return _from_disparity((raw @ _SINTEL_DISPARITY).astype(np.float32))


def _decode_virtual_kitti(data: bytes) -> Array:
    """Virtual KITTI's 16-bit PNG: 0 … 2^16-1 stand for -(W-1) … W-1, and so for the height.

    Blue is 0 where the flow is unknown, as in the sky.
    """
    raw = decode_png(data, np.uint16, 3, "a Virtual KITTI flow file is a 16-bit RGB PNG")
    height, width = raw.shape[:2]
    flow = (raw[..., :2] * (2 / (2**16 - 1)) - 1) * [width - 1, height - 1]
    flow[raw[..., 2] == 0] = np.nan
    return flow


def _decode_viper(data: bytes) -> Array:
    """VIPER's .npz: the arrays u and v, NaN or infinite where unknown."""
    arrays = decode_arrays(data, ("u", "v"))
    u, v = arrays["u"], arrays["v"]
    if u.ndim != 2 or u.shape != v.shape or not u.size or {u.dtype.kind, v.dtype.kind} - {*"fiu"}:
        raise InputError(
            f"u and v must be numbers of one (height, width), got {u.shape}, {v.shape}"
        )
    flow = np.stack([u, v], -1).astype(np.float32)
    flow[~np.isfinite(flow).all(2)] = np.nan
    return flow


_DECODERS: dict[str, Callable[[bytes], Array]] = {
    "kitti-disparity": _decode_kitti_disparity,
    "sintel-disparity": _decode_sintel_disparity,
    "virtual-kitti": _decode_virtual_kitti,
    "viper": _decode_viper,
}
ENCODINGS = ("flow", "disparity", *_DECODERS)
