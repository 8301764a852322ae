"""Frames of film: pixels with alpha and with values above 1, and what the network sees of them.

Warping and blending work on premultiplied values, in the colour space of the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..errors import InputError, check_name, refusing
from .exr import (
    Channels,
    MissingChannelsError,
    decode_channels,
    encode_channels,
    openexr,
    window_size,
)
from .images import (
    check_image_name,
    check_unit_range,
    decode_image,
    decode_pixels,
    encode_image,
    to_integers,
)
from .reading import Array, most_bytes, read_bytes

COLOR_SPACES = ("linear", "srgb")
ALPHAS = ("straight", "premultiplied")
PLATE_SUFFIX = ".exr"
_MAGIC = b"\x76\x2f\x31\x01"
_KNEE = 0.8  # sRGB value from which highlights are compressed, for the network
_MOST = 1e6  # of linear light: more, and infinity, is the same to the network


@dataclass(frozen=True)
class Reading:
    """What is said about files; None: EXR is linear and premultiplied, others sRGB and straight."""

    color_space: str | None = None
    alpha: str | None = None
    layer: str | None = None
    """The layer of an EXR file: "beauty" for beauty.R, beauty.G …; None: R, G, B and A."""

    def __post_init__(self) -> None:
        for name, known in (("color_space", COLOR_SPACES), ("alpha", ALPHAS)):
            if getattr(self, name) is not None:
                check_name(f"`{name}`", getattr(self, name), known)


AS_USUAL = Reading()


@dataclass(frozen=True)
class Plate:
    """A picture as its file has it."""

    pixels: Array
    """(H, W, 3) RGB, or 4 with alpha: uint8, uint16, or float16 and float32 of any value."""
    color_space: str = "srgb"
    alpha: str = "straight"
    header: Mapping[str, Any] = field(default_factory=dict)
    """What an EXR file says of its colours and pixels, and keeps."""
    left_out: tuple[str, ...] = ()
    """Channels that its file has as well."""

    @property
    def seen(self) -> Array:
        """(H, W, 3) for the network: integers, or float32 in [0, 1].

        Linear light becomes sRGB with compressed highlights: the same curve for every frame.
        """
        colors = np.ascontiguousarray(self.pixels[..., :3])
        if self.color_space == "srgb" and colors.dtype.kind != "f":
            return colors
        colors = np.nan_to_num(_unit(colors), nan=0).clip(0, _MOST)
        if self.color_space == "srgb":
            return colors.clip(max=1)
        shown = to_srgb(colors)
        over = (shown.clip(_KNEE) - _KNEE) / (1 - _KNEE)
        return shown.clip(max=_KNEE) + (1 - _KNEE) * over / (1 + over)

    @property
    def values(self) -> Array:
        """What may be warped and blended: integers, or float32 multiplied by alpha.

        (H, W, 3 or 4); of straight alpha (H, W, 7), with the colours as they are at the end.
        """
        if not self._is_weighted:
            return self.pixels
        pixels = _unit(self.pixels)
        if self.pixels.shape[2] == 4 and self.alpha == "straight":
            return np.concatenate([_multiplied(pixels), pixels[..., :3]], 2)
        return pixels

    def with_values(self, values: Array) -> "Plate":
        """Return the same kind of picture with other `values`."""
        if self._is_weighted:
            if values.shape[2] == 7:  # colours stay where alpha is 0
                values = _divided(values[..., :4], values[..., 4:])
            values = _from_unit(values, self.pixels.dtype)
        return replace(self, pixels=values)

    def converted(self, color_space: str, alpha: str) -> "Plate":
        """Return it as float32 in another colour space, or with alpha used the other way."""
        pixels = _unit(self.pixels)
        transparent = pixels.shape[2] == 4
        if transparent and self.alpha == "premultiplied":
            pixels = _divided(pixels)
        if color_space != self.color_space:
            convert = to_srgb if color_space == "srgb" else to_linear
            pixels = np.concatenate([convert(pixels[..., :3]), pixels[..., 3:]], 2)
        if transparent and alpha == "premultiplied":
            pixels = _multiplied(pixels)
        return replace(self, pixels=pixels, color_space=color_space, alpha=alpha)

    @property
    def _is_weighted(self) -> bool:
        return self.pixels.dtype.kind == "f" or self.pixels.shape[2] == 4


def to_srgb(linear: Array) -> Array:
    """Linear light as sRGB values; those above 1 and below 0 follow the same curve."""
    size = np.abs(linear)
    curve = np.where(size <= 0.0031308, 12.92 * size, 1.055 * size ** (1 / 2.4) - 0.055)
    return np.copysign(curve, linear).astype(np.float32)


def to_linear(srgb: Array) -> Array:
    """The inverse of `to_srgb`."""
    size = np.abs(srgb)
    curve = np.where(size <= 0.04045, size / 12.92, ((size + 0.055) / 1.055) ** 2.4)
    return np.copysign(curve, srgb).astype(np.float32)


def _unit(pixels: Array) -> Array:
    """Integers as float32 from 0 to 1; floats as float32."""
    scale = np.iinfo(pixels.dtype).max if pixels.dtype.kind == "u" else 1
    return pixels.astype(np.float32) / np.float32(scale)


def _from_unit(values: Array, depth: np.dtype[Any]) -> Array:
    if depth.kind == "f":
        return values.astype(depth)
    most = np.iinfo(depth).max
    return np.rint(values.clip(0, 1) * most).astype(depth)


def _multiplied(pixels: Array) -> Array:
    return np.concatenate([pixels[..., :3] * pixels[..., 3:], pixels[..., 3:]], 2)


def _divided(pixels: Array, hidden: Array | None = None) -> Array:
    """Divide colours by alpha; where that is 0 they are `hidden`, or black."""
    alpha = pixels[..., 3:]
    colors = np.zeros_like(pixels[..., :3]) if hidden is None else hidden.copy()
    np.divide(pixels[..., :3], alpha, out=colors, where=alpha > 0)
    return np.concatenate([colors, alpha], 2)


def read_plate(path: str | Path, reading: Reading = AS_USUAL) -> Plate:
    """Read a picture with its alpha; an .exr file with half or float values."""
    return decode_plate(read_bytes(path, most_bytes()), str(path), reading)


def decode_plate(data: bytes, name: str, reading: Reading = AS_USUAL) -> Plate:
    """Return the picture in the bytes of a file; errors contain `name`."""
    is_exr = data.startswith(_MAGIC)
    space = reading.color_space or ("linear" if is_exr else "srgb")
    alpha = reading.alpha or ("premultiplied" if is_exr else "straight")
    if is_exr:
        with refusing(name, InputError):
            return Plate(*_decode_exr(data, reading.layer, space, alpha))
    if reading.layer is not None:
        raise InputError(f"{name} has no layers, only .exr files do; leave out `layer`")
    colors = decode_image(data, name)
    if colors.dtype.kind == "f" and space == "srgb":
        with refusing(name, InputError):
            check_unit_range(float(colors.min()), float(colors.max()))
        return Plate(to_integers(colors), space, alpha)
    return Plate(_with_alpha(data, colors), space, alpha)


def read_seen(path: str | Path, reading: Reading = AS_USUAL) -> Array:
    """Read a picture as the network sees it: (H, W, 3) uint8, uint16 or float32 in [0, 1]."""
    return decode_seen(read_bytes(path, most_bytes()), str(path), reading)


def decode_seen(data: bytes, name: str, reading: Reading = AS_USUAL) -> Array:
    """Return the same for the bytes of a file."""
    if data.startswith(_MAGIC) or reading != AS_USUAL:
        return decode_plate(data, name, reading).seen
    image = decode_image(data, name)
    if image.dtype.kind == "f":
        with refusing(name, InputError):
            check_unit_range(float(image.min()), float(image.max()))
    return image


def _with_alpha(data: bytes, colors: Array) -> Array:
    """Add the alpha of a file, turned as OpenCV has turned its colours, unless it changed them."""
    whole = decode_pixels(data, cv2.IMREAD_UNCHANGED)
    if whole is None or whole.ndim != 3 or whole.shape[2] != 4:
        return colors
    for turned in (np.rot90(side, k) for side in (whole, whole[:, ::-1]) for k in range(4)):
        if np.array_equal(turned[..., 2::-1], colors):
            return np.ascontiguousarray(np.dstack([colors, turned[..., 3]]))
    return colors


def _decode_exr(
    data: bytes, layer: str | None, space: str, alpha: str
) -> tuple[Array, str, str, dict[str, Any], tuple[str, ...]]:
    prefix = "" if layer is None else f"{layer}."
    names = tuple(prefix + letter for letter in "RGB")
    try:
        found = decode_channels(data, names, "picture", (4, "four as one picture"))
    except MissingChannelsError as error:
        layers = sorted({n[:-2] for n in error.there if n.endswith(".R")})
        choice = f"; choose a layer: `layer={layers[0]!r}`" if layers else ""
        if len(layers) > 1:
            choice += f" (or {', '.join(layers[1:])})"
        raise InputError(f"{error}{choice}") from None
    if prefix + "A" in found.pixels:
        names += (prefix + "A",)
    left_out = tuple(sorted({*found.pixels} - {*names}))
    return _in_display(found, names), space, alpha, found.header, left_out


def _in_display(found: Channels, names: tuple[str, ...]) -> Array:
    """(H, W, C) of the display window; black where the file has no pixels."""
    channels = [found.pixels[name] for name in names]
    depth = np.result_type(*channels)
    if depth.kind != "f":
        raise InputError(f"a picture must have half or float channels, got {depth}")
    stacked = np.stack(channels, -1).astype(depth)
    if found.data == found.display:
        return stacked
    (left, top, _, _), (x, y, _, _) = found.data, found.display
    width, height = window_size(found.display)
    whole = np.zeros((height, width, len(names)), depth)
    first_row, first_column = max(top - y, 0), max(left - x, 0)
    part = stacked[max(y - top, 0) :, max(x - left, 0) :]
    part = part[: max(height - first_row, 0), : max(width - first_column, 0)]
    rows, columns = part.shape[:2]
    whole[first_row : first_row + rows, first_column : first_column + columns] = part
    return whole


def encode_plate(path: str | Path, plate: Plate) -> bytes:
    """Return the bytes of a file.

    From EXR to EXR and from integers to integers, colour space and use of alpha stay; otherwise
    EXR becomes linear and premultiplied, and integers sRGB and straight, cut off at 1.
    """
    pixels, is_float = plate.pixels, plate.pixels.dtype.kind == "f"
    if Path(path).suffix.lower() != PLATE_SUFFIX:
        if is_float:
            pixels = to_integers(np.nan_to_num(plate.converted("srgb", "straight").pixels))
        return encode_image(path, pixels)
    if not is_float:
        depth = np.float16 if pixels.dtype == np.uint8 else np.float32
        pixels = plate.converted("linear", "premultiplied").pixels.astype(depth)
    channels = {name: pixels[..., i] for i, name in enumerate("RGBA"[: pixels.shape[2]])}
    return encode_channels(channels, plate.header)


def check_plate_name(path: str | Path) -> None:
    """Refuse, before any work is done, an extension that `encode_plate` does not support here."""
    if Path(path).suffix.lower() == PLATE_SUFFIX:
        openexr()
    else:
        check_image_name(path)
