"""What explains a picture: captions, and keys that show what its colours and arrows mean."""

from functools import lru_cache
from math import floor, log10

import cv2
import numpy as np

from ..files import Array
from .figures import GAP, INK, PAPER, SCALE, line_height, text_width, write_on, write_text
from .visualize import arrow_scale, arrow_spacing, draw_arrow, flow_to_rgb


def add_caption(picture: Array, text: str) -> Array:
    """Write on the picture if it fits, in letters for its size; else only what precedes a comma."""
    scale = _text_scale(picture)
    for words in (text, text.partition(",")[0]):
        fits = text_width(words, scale) + 2 * _gap(scale) <= picture.shape[1]
        if fits and line_height(scale) <= picture.shape[0] / 3:
            return write_on(picture, words, scale)
    return picture


def add_color_key(picture: Array, maximum: float) -> Array:
    """Draw the colour wheel, and the length in px of its full colours, which is `maximum`."""
    radius = max(6, round(min(picture.shape[:2]) / 12))
    return _add_key(picture, _wheel(radius), _in_px(maximum))


def add_arrow_key(picture: Array, maximum: float) -> Array:
    """Draw an arrow of a round length as `draw_arrows` draws it, and that length."""
    spacing, length = arrow_spacing(picture.shape), _round_down(maximum)
    drawn = length * arrow_scale(picture.shape, maximum)
    sign = np.full((spacing | 1, round(drawn) + 1, 3), PAPER, np.uint8)
    draw_arrow(sign, (0, spacing // 2), np.array([drawn, 0]), np.full(3, INK), spacing)
    return _add_key(picture, sign, _in_px(length))


_KEYS = {"arrows": add_arrow_key}
_KEYS |= dict.fromkeys(("image", "wheel", "overlay"), add_color_key)


def add_key(kind: str, picture: Array, maximum: float) -> Array:
    """Add the key of what was drawn; only pictures of flow, not "confidence" etc., have one."""
    return _KEYS[kind](picture, maximum) if kind in _KEYS else picture


def _add_key(picture: Array, sign: Array, text: str) -> Array:
    """Return the picture with a sign and its text in the bottom right corner, if they fit."""
    scale = _text_scale(picture)
    gap = _gap(scale)
    height = max(len(sign), round(0.7 * line_height(scale))) + 2 * gap
    width = sign.shape[1] + text_width(text, scale) + 3 * gap
    if height > picture.shape[0] / 2 or width > picture.shape[1]:
        return picture
    picture = picture.copy()
    plate = picture[-height:, -width:]
    plate[:] = PAPER
    top = (height - len(sign)) // 2
    plate[top : top + len(sign), gap : gap + sign.shape[1]] = sign
    baseline = (height + round(22 * scale)) // 2  # capitals are 22 px high at a scale of 1
    write_text(plate, text, (sign.shape[1] + 2 * gap, baseline), scale)
    return picture


@lru_cache(maxsize=8)
def _wheel(radius: int) -> Array:
    """The colours of all vectors up to full colour, and a line of that length to the right."""
    x = np.arange(-radius, radius + 1) / radius
    vectors = np.dstack(np.meshgrid(x, x))
    length = np.hypot(vectors[..., 0], vectors[..., 1])
    inside = np.clip((1 - length) * radius + 0.5, 0, 1)[..., None]  # smooth at the rim
    colors = flow_to_rgb(vectors / np.maximum(length, 1)[..., None], 1.0)
    wheel = np.rint(PAPER + (colors - np.float64(PAPER)) * inside).astype(np.uint8)
    cv2.line(wheel, (radius, radius), (2 * radius, radius), (PAPER,) * 3, max(1, radius // 24))
    return wheel


def _text_scale(picture: Array) -> float:
    return 0.25 + min(picture.shape[:2]) / 1100


def _gap(scale: float) -> int:
    return round(GAP * scale / SCALE)


def _round_down(length: float) -> float:
    """The largest of …, 0.5, 1, 2, 5, 10, 20, … that is not larger."""
    power = 10.0 ** floor(log10(length))
    return power * max(step for step in (1, 2, 5) if step * power <= length or step == 1)


def _in_px(length: float) -> str:
    return f"{length:.0f} px" if length >= 9.95 else f"{length:.2g} px"
