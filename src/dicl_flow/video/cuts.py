"""Cuts: changes of scene between two frames, where there is no motion to estimate."""

import cv2
import numpy as np

from ..files import Array, to_uint8

CUTS = ("estimate", "blank", "hold")
"""The flow at a cut: as estimated, unknown, or that of the pair before."""

_SMALL = 96  # px, the longer side of the compared pictures
_QUARTER = 4
_CUT = 0.5  # unexplained share of the contrast: 0.05 to 0.25 within scenes, above 0.8 at cuts


def is_cut(image1: Array, image2: Array, flow: Array) -> bool:
    """Whether the frames show different scenes: no flow explains one by the other."""
    return is_unexplained(unexplained(image1, image2, flow))


def is_unexplained(difference: float) -> bool:
    """Whether a difference is so large that the frames show different scenes."""
    return difference > _CUT


def unexplained(image1: Array, image2: Array, flow: Array) -> float:
    """The difference between frame 2, warped by the flow, and frame 1, relative to its contrast.

    Compared small and in grey, where noise and fine texture do not matter.
    """
    vectors = _resized(flow, *small_size(*flow.shape[:2]))
    return small_unexplained(small_grey(image1), small_grey(image2), vectors, flow.shape[:2])


def small_size(height: int, width: int) -> tuple[int, int]:
    """(height, width) of the compared pictures of a frame."""
    scale = _scale(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def small_grey(image: Array) -> Array:
    """A frame as it is compared."""
    size = small_size(*image.shape[:2])
    grey = cv2.cvtColor(to_uint8(_shrunk(image, *size)), cv2.COLOR_RGB2GRAY)
    return _resized(grey, *size)


def _shrunk(image: Array, height: int, width: int) -> Array:
    """A large frame a quarter as high and wide, which OpenCV does quickly, before it is grey."""
    rows, columns = image.shape[0] // _QUARTER, image.shape[1] // _QUARTER
    if min(rows / height, columns / width) < 2:
        return image
    whole = image[: rows * _QUARTER, : columns * _QUARTER]
    return cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA)


def small_unexplained(first: Array, second: Array, vectors: Array, size: tuple[int, ...]) -> float:
    """See `unexplained`; of small frames and a small flow, in px of frames of (height, width)."""
    height, width = first.shape
    x, y = np.moveaxis(vectors * np.float32(_scale(*size)), 2, 0)
    x, y = x + np.arange(width, dtype=np.float32), y + np.arange(height, dtype=np.float32)[:, None]
    seen = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)  # unknown flow is not
    again = cv2.remap(second, np.nan_to_num(x), np.nan_to_num(y), cv2.INTER_LINEAR)
    if not seen.any():
        return float("inf")
    contrast = np.abs(first - np.median(first)).mean() + 1  # plus one grey level, for blank frames
    return float(np.abs(first - again)[seen].mean() / contrast)


def _scale(height: int, width: int) -> float:
    return min(1.0, _SMALL / max(height, width))


def _resized(picture: Array, height: int, width: int) -> Array:
    small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32)
