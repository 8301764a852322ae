"""Reads disparity maps."""

from pathlib import Path

import numpy as np

from ..errors import InputError, unknown_name
from .arrays import Array, decode_npy
from .flow_files import decode_pfm
from .reading import read_bytes
from .sizes import most_bytes

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
        raise InputError(f"{path}: a disparity map has the shape (height, width)")
    disparity = disparity.astype(np.float32)
    return np.where(np.isfinite(disparity), disparity, np.float32(np.nan))
