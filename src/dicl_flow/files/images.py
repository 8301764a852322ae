"""Reads and writes images as (H, W, 3) RGB arrays in the bit depth of the file."""

from math import isfinite
from pathlib import Path

import cv2
import numpy as np

from ..errors import InputError
from .arrays import Array
from .image_sizes import image_size
from .reading import read_bytes
from .sizes import check_size, most_bytes

_SIXTEEN_BITS = (".png", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")  # formats with 16 bits


def read_image(path: str | Path) -> Array:
    """Read any image that OpenCV supports as (H, W, 3) RGB, uint8, uint16 or float32.

    Grey images get three equal channels, transparency is dropped, and the orientation in the EXIF
    data is applied.
    """
    return decode_image(read_bytes(path, most_bytes()), str(path))


def decode_image(data: bytes, name: str) -> Array:
    """Return the image in the bytes of a file, as `read_image` does; errors contain `name`."""
    try:
        image = decode_pixels(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if image is None:
        raise InputError(f"{name} is not an image, or has a format that OpenCV cannot read")
    if image.dtype not in (np.uint8, np.uint16, np.float32):
        raise InputError(f"{name} has pixels of {image.dtype}; expected 8 or 16 bits, or float32")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def decode_pixels(data: bytes, flags: int) -> Array | None:
    """Return the pixels from OpenCV; None if it is not an image; an error if it is too large."""
    size = image_size(data)
    if size is None:
        return None
    check_size(*size)
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise InputError(f"it cannot be read as an image: {error.err}") from None


def check_unit_range(low: float, high: float) -> None:
    """Refuse a float image with values outside [0, 1], given its minimum and maximum."""
    if not (isfinite(low) and isfinite(high)):
        raise InputError("the image contains NaN or infinite values")
    if low < 0 or high > 1:
        raise InputError(
            f"float images must be in [0, 1], this one is in [{low:g}, {high:g}]; "
            f"divide by its full scale, or pass uint8"
        )


def encode_image(path: str | Path, image: Array) -> bytes:
    """Return the bytes of an image file in the format of `path`: (H, W, 3) RGB or (H, W) grey.

    uint8 or uint16; 16 bits are kept in .png, .tif and .ppm, other formats have 8.
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
    """Refuse, before any work is done, an extension that `encode_image` does not support."""
    encode_image(path, np.zeros((16, 16, 3), np.uint8))


def to_integers(image: Array) -> Array:
    """Return uint8 and uint16 unchanged, floats in [0, 1] as uint16."""
    if image.dtype.kind == "f":
        return np.rint(np.clip(image, 0, 1) * 65535).astype(np.uint16)
    return image


def to_uint8(image: Array) -> Array:
    """Convert an image of any supported depth (floats in [0, 1]) to 8 bits."""
    if image.dtype == np.uint16:
        return (image >> 8).astype(np.uint8)
    if image.dtype.kind == "f":
        return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    return image.astype(np.uint8, copy=False)
