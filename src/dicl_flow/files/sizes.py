"""How large a picture or a flow may be: asked before memory is taken for it."""

import os
from math import ceil, isfinite

from ..errors import InputError

DEFAULT_MAX_SIZE = 150.0  # megapixels; a frame of 16K has 133
_VARIABLE = "DICL_FLOW_MAX_SIZE"  # a variable of the system: loader processes inherit it
_BYTES_PER_PIXEL = 16  # two float64 of a flow, four float32 of an image; no file needs more


def max_size() -> float:
    """Return how many megapixels a picture or a flow that is read may have."""
    return _checked(os.environ.get(_VARIABLE, DEFAULT_MAX_SIZE))


def set_max_size(megapixels: float) -> None:
    """Read pictures and flows of up to so many megapixels, here and in processes started later.

    A small file can claim to hold a picture that fills all memory; larger ones are refused.
    The variable DICL_FLOW_MAX_SIZE of the system does the same.
    """
    os.environ[_VARIABLE] = str(_checked(megapixels))


def check_size(width: int, height: int) -> None:
    """Refuse a picture or a flow of more pixels than `max_size` allows."""
    check_pixels(width * height, f"{width}x{height}")


def check_pixels(pixels: int, what: str) -> None:
    """Refuse so many pixels, of something called `what`, if `max_size` does not allow them."""
    limit = max_size()
    if pixels > limit * 1e6:
        raise InputError(
            f"{what} has {_text(pixels / 1e6)} megapixels, the limit is {_text(limit)}; allow more "
            f"with `max_size={ceil(pixels / 1e6)}`"
        )


def most_bytes() -> int:
    """Return what the largest file that `max_size` allows can take."""
    return int(max_size() * 1e6) * _BYTES_PER_PIXEL + 2**20  # and some room for headers


def _checked(megapixels: float | str) -> float:
    try:
        value = float(megapixels)
    except ValueError:
        value = 0.0
    if not (value > 0 and isfinite(value)):
        raise InputError(
            f"`max_size` ({_VARIABLE}) is a number of megapixels above 0, got {megapixels!r}"
        )
    return value


def _text(megapixels: float) -> str:
    return f"{megapixels:,.0f}" if megapixels >= 10 else f"{megapixels:.3g}"
