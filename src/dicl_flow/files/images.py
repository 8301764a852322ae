"""Reads and writes images as (H, W, 3) RGB arrays in the bit depth of the file."""

import re
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from struct import error as StructError
from struct import unpack_from

import cv2
import numpy as np

from ..errors import InputError, counted, refusing
from ..fence import fenced
from .reading import Array, check_decoded, check_size, most_bytes, read_bytes

Size = tuple[int, int]


def image_size(data: bytes) -> Size | None:
    """Return (width, height) from the header; None if it is not the header of an image."""
    for signature, read in _FORMATS.items():
        if re.match(signature, data, re.DOTALL):
            try:
                return read(data)
            except (StructError, IndexError, TypeError, ValueError, KeyError, OverflowError):
                return None  # truncated header
    return None


def _png(data: bytes) -> Size:
    place, pixels = 8, False
    while place + 8 <= len(data):  # OpenCV allocates what a chunk claims to have
        length, kind = unpack_from(">I4s", data, place)
        if length > len(data):
            raise ValueError
        pixels = pixels or kind == b"IDAT"
        if kind == b"IEND" and pixels:  # anything may follow
            break
        place += 12 + length
    return unpack_from(">II", data, 16)


def _jpeg(data: bytes) -> Size:
    place = 2
    while True:
        while data[place] == 0xFF:  # a marker may follow any number of fill bytes
            place += 1
        marker = data[place]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
            height, width = unpack_from(">HH", data, place + 4)
            return width, height
        place += 1 + unpack_from(">H", data, place + 1)[0]
        place = data.index(b"\xff", place)


def _tiff(data: bytes) -> Size:
    order = "<" if data[:2] == b"II" else ">"
    big = unpack_from(f"{order}H", data, 2)[0] == 43
    offset, count, entry = ("Q", "Q", 20) if big else ("I", "H", 12)
    start = unpack_from(f"{order}{offset}", data, 8 if big else 4)[0]
    number = unpack_from(f"{order}{count}", data, start)[0]
    start += 8 if big else 2
    sides: dict[int, int] = {}
    for place in range(start, start + min(number, 4096) * entry, entry):
        tag, kind = unpack_from(f"{order}HH", data, place)
        if tag in (256, 257) and tag not in sides:
            form = {1: "B", 3: "H", 4: "I", 16: "Q"}[kind]
            sides[tag] = unpack_from(f"{order}{form}", data, place + (12 if big else 8))[0]
    return sides[256], sides[257]


def _webp(data: bytes) -> Size:
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _bmp(data: bytes) -> Size:
    if unpack_from("<I", data, 14)[0] == 12:
        return unpack_from("<HH", data, 18)
    width, height = unpack_from("<ii", data, 18)
    return abs(width), abs(height)  # a negative height means rows from top to bottom


def _netpbm(data: bytes) -> Size:
    text = re.sub(rb"#[^\n]*", b" ", data[:4096])  # comments
    width, height = text.split()[1:3]
    return int(width), int(height)


def _pam(data: bytes) -> Size:
    sides = dict(re.findall(rb"\n(WIDTH|HEIGHT)\s+(\d+)", data[:4096])[::-1])  # the first counts
    return int(sides[b"WIDTH"]), int(sides[b"HEIGHT"])


def _radiance(data: bytes) -> Size:
    sizes = re.findall(rb"\n[-+]([XY])\s+(\d+)\s+[-+][XY]\s+(\d+)", data[:65536])
    axis, first, second = sizes[0]
    return (int(second), int(first)) if axis == b"Y" else (int(first), int(second))


def _openexr(data: bytes) -> Size:
    name = b"dataWindow\0box2i\0"
    left, top, right, bottom = unpack_from("<4i", data, data.index(name) + len(name) + 4)
    return right - left + 1, bottom - top + 1


def _jpeg2000(data: bytes) -> Size:
    right, bottom, left, top = unpack_from(">4I", data, data.index(b"\xff\x4f\xff\x51") + 8)
    return right - left, bottom - top


def _avif(data: bytes) -> Size:
    sizes = [unpack_from(">II", data, box.end() + 4) for box in re.finditer(b"ispe", data)]
    return max(sizes, key=lambda size: size[0] * size[1])


_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_FORMATS: dict[bytes, Callable[[bytes], Size]] = {
    _PNG: _png,
    _JPEG: _jpeg,
    rb"II[*+]\0|MM\0[*+]": _tiff,
    rb"RIFF....WEBP": _webp,
    rb"BM": _bmp,
    rb"P[1-6Ff]\s": _netpbm,  # also .pfm
    rb"P7\n": _pam,
    rb"#\?(RADIANCE|RGBE)": _radiance,
    rb"\x76\x2f\x31\x01": _openexr,
    rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51": _jpeg2000,
    rb"....ftypavi[fs]": _avif,
    rb"GIF8[79]a": lambda data: unpack_from("<HH", data, 6),
    rb"\x59\xa6\x6a\x95": lambda data: unpack_from(">II", data, 4),  # Sun raster
}
_SIXTEEN_BITS = (".png", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")  # formats with 16 bits
_TRANSPARENT = (".png", ".tif", ".tiff", ".webp", ".exr")


def read_image(path: str | Path) -> Array:
    """Read any image that OpenCV supports as (H, W, 3) RGB, uint8, uint16 or float32.

    Grey images get three equal channels, transparency is dropped, and the orientation in the EXIF
    data is applied.
    """
    return decode_image(read_bytes(path, most_bytes()), str(path))


def decode_image(data: bytes, name: str) -> Array:
    """Return the image in the bytes of a file, as `read_image` does; errors contain `name`."""
    with refusing(name, InputError):
        image = decode_pixels(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if image is None:
        raise InputError(f"{name} is not an image, or has a format that OpenCV cannot read")
    if image.dtype not in (np.uint8, np.uint16, np.float32) or image.shape[2:] != (3,):
        raise InputError(f"{name} has pixels of {image.dtype}; expected 8 or 16 bits, or float32")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def decode_pixels(data: bytes, flags: int) -> Array | None:
    """Return the pixels from OpenCV; None if it is not an image.

    One that is too large, or a truncated PNG or JPEG, is an error.
    """
    pixels = _decode_pixels(data, flags)
    if pixels is not None:
        check_decoded(pixels)
    return pixels


def decode_png(data: bytes, kind: type[np.generic], channels: int, expected: str) -> Array:
    """Decode a PNG with this type and number of channels: (H, W) or (H, W, 3) RGB."""
    raw = decode_pixels(data, cv2.IMREAD_UNCHANGED)
    if raw is None:
        raise InputError("not a PNG file, or damaged")
    found = raw.shape[2] if raw.ndim == 3 else 1
    if raw.dtype != kind or found != channels:
        what = f"{8 * raw.dtype.itemsize} bits and {counted(found, 'channel')}"
        raise InputError(f"{expected}; this one has {what}")
    return raw[..., ::-1] if channels == 3 else raw


@fenced(most_bytes)
def _decode_pixels(data: bytes, flags: int) -> Array | None:
    size, pixels = image_size(data), None
    if size is not None:
        check_size(*size)
        if data.startswith(_JPEG) and not _has_jpeg_end(data):
            raise _truncated("JPEG", data)  # OpenCV would fill what is missing with grey
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        except cv2.error as error:
            raise InputError(f"it cannot be read as an image: {error.err}") from None
    if pixels is None and data.startswith(_PNG) and b"IEND" not in data:
        raise _truncated("PNG", data)
    return pixels


def _truncated(kind: str, data: bytes) -> InputError:
    ends = f"a {kind} that ends after {len(data):,} bytes"
    return InputError(f"truncated file: {ends}; copy it again")


def _has_jpeg_end(data: bytes) -> bool:
    """Whether the marker of the end follows the pixels, which cannot contain it."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        if data[place + 1] == 0xFF:  # a fill byte
            place += 1
        elif data[place + 1] == 0xDA:  # the pixels; a preview comes before
            break
        else:
            place += 2 + unpack_from(">H", data, place + 2)[0]
    return data.find(b"\xff\xd9", place) >= 0


def check_unit_range(low: float, high: float) -> None:
    """Refuse a float image with values outside [0, 1], given its minimum and maximum."""
    if not (isfinite(low) and isfinite(high)):
        raise InputError("the image contains NaN or infinite values")
    if low < 0 or high > 1:
        advice = "divide by its full scale, or pass uint8"
        raise InputError(f"float images must be in [0, 1], not in [{low:g}, {high:g}]; {advice}")


def encode_image(path: str | Path, image: Array) -> bytes:
    """Return the bytes of an image, uint8, or uint16 if the format can.

    (H, W), (H, W, 3) RGB or (H, W, 4) with alpha, which is dropped if the format has none.
    """
    if image.dtype == np.uint16 and Path(path).suffix.lower() not in _SIXTEEN_BITS:
        image = to_uint8(image)
    order = [2, 1, 0, 3][: 4 if has_alpha(path) else 3]
    pixels = image[..., order[: image.shape[2]]] if image.ndim == 3 else image
    try:
        written, data = cv2.imencode(Path(path).suffix, np.ascontiguousarray(pixels))
    except cv2.error:
        written = False
    if not written:
        problem = f"unknown image extension {Path(path).suffix!r}; use .png or .jpg"
        raise InputError(f"cannot write {path}: {problem}")
    return bytes(data)


def has_16_bits(path: str | Path) -> bool:
    """Whether the format of a file can hold more than 8 bits."""
    return Path(path).suffix.lower() in (*_SIXTEEN_BITS, ".exr")


def has_alpha(path: str | Path) -> bool:
    """Whether the format of a file can hold transparency."""
    return Path(path).suffix.lower() in _TRANSPARENT


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
