"""Images: (H, W, 3) RGB arrays in the depth of the file."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..errors import InputError
from .atomic import read_bytes

Array = np.ndarray[Any, np.dtype[Any]]

_SIXTEEN_BITS = (".png", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")  # formats that hold them


def read_image(path: str | Path) -> Array:
    """Read any image OpenCV reads as (H, W, 3) RGB, uint8, uint16 or float32.

    Grey images are repeated on three channels, transparency is dropped, and the
    orientation a camera noted is applied.
    """
    data = np.frombuffer(read_bytes(path), np.uint8)
    try:
        image = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except cv2.error as error:
        raise InputError(f"{path} cannot be read as an image: {error.err}") from None
    if image is None:
        raise InputError(f"{path} is not an image, or one in a format that OpenCV cannot read")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def encode_image(path: str | Path, image: Array) -> bytes:
    """Return the bytes of a file of `path`'s format: (H, W, 3) RGB or (H, W) grey.

    uint8, or uint16: 16 bits are kept in .png, .tif and .ppm; other formats hold 8.
    """
    if image.dtype == np.uint16 and Path(path).suffix.lower() not in _SIXTEEN_BITS:
        image = to_uint8(image)
    pixels = image[..., ::-1] if image.ndim == 3 else image
    try:
        written, data = cv2.imencode(Path(path).suffix, np.ascontiguousarray(pixels))
    except cv2.error:
        written = False
    if not written:
        raise InputError(
            f"cannot write {path}: unknown image extension {Path(path).suffix!r}; use .png or .jpg"
        )
    return bytes(data)


def check_image_name(path: str | Path) -> None:
    """Refuse, before any work is done, an extension that `encode_image` does not know."""
    encode_image(path, np.zeros((16, 16, 3), np.uint8))


def to_integers(image: Array) -> Array:
    """Return uint8 and uint16 as they are; floats in [0, 1] become uint16."""
    if image.dtype.kind == "f":
        return np.rint(np.clip(image, 0, 1) * 65535).astype(np.uint16)
    return image


def to_uint8(image: Array) -> Array:
    """Bring an image of any supported depth (floats in [0, 1]) to 8 bits for display."""
    if image.dtype == np.uint16:
        return (image >> 8).astype(np.uint8)
    if image.dtype.kind == "f":
        return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    return image.astype(np.uint8, copy=False)
