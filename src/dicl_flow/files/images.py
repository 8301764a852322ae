"""Images: (H, W, 3) RGB arrays in the depth of the file."""

from math import isfinite
from pathlib import Path

import cv2
import numpy as np

from ..errors import InputError
from .arrays import Array
from .image_sizes import image_size
from .reading import read_bytes
from .sizes import check_size, most_bytes

_SIXTEEN_BITS = (".png", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")  # formats that hold them


def read_image(path: str | Path) -> Array:
    """Read any image OpenCV reads as (H, W, 3) RGB, uint8, uint16 or float32.

    Grey images are repeated on three channels, transparency is dropped, and the
    orientation a camera noted is applied.
    """
    return decode_image(read_bytes(path, most_bytes()), str(path))


def decode_image(data: bytes, name: str) -> Array:
    """Return the image that the bytes of a file hold, as `read_image`; errors say `name`."""
    try:
        image = decode_pixels(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if image is None:
        raise InputError(f"{name} is not an image, or one in a format that OpenCV cannot read")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def decode_pixels(data: bytes, flags: int) -> Array | None:
    """Pixels as OpenCV hands them out; None for what is no image, an error for too large a one."""
    size = image_size(data)
    if size is None:
        return None
    check_size(*size)
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise InputError(f"it cannot be read as an image: {error.err}") from None


def check_unit_range(low: float, high: float) -> None:
    """Refuse a float image whose least and greatest pixel do not lie in [0, 1]."""
    if not (isfinite(low) and isfinite(high)):
        raise InputError("the image holds NaN or infinite pixels")
    if low < 0 or high > 1:
        raise InputError(
            f"float images lie in [0, 1], this one in [{low:g}, {high:g}]; "
            f"divide by its full scale, or pass uint8"
        )


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
