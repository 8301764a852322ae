"""Contact sheets of small labelled pictures; figures: the only gateway to matplotlib."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import cv2
import numpy as np

from ..errors import InputError
from ..files import Array

_PAPER, _INK = 24, 230
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_GAP = 4  # px between cells
_LINE = 20  # px, height of a line of text


def contact_sheet(
    rows: Sequence[Sequence[Array]],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    cell_width: int = 320,
    cell_height: int = 240,
) -> Array:
    """Lay out (H, W, 3) uint8 RGB pictures of any sizes on one (H, W, 3) sheet.

    Each picture is scaled to fit into a cell. The label of a row is above it. Rows may be shorter
    than `column_labels`.
    """
    width = len(column_labels) * (cell_width + _GAP) + _GAP
    strips = [_text_strip(column_labels, width, cell_width)]
    for row, label in zip(rows, row_labels, strict=True):
        cells = [thumbnail(picture, cell_width, cell_height) for picture in row]
        strips += [_text_strip([label], width, width), _picture_strip(cells, width, cell_width)]
    return np.concatenate(strips)


def thumbnail(picture: Array, cell_width: int = 320, cell_height: int = 240) -> Array:
    """Scale a picture to fit into a cell; calling it early saves memory and changes no sheet."""
    height, width = picture.shape[:2]
    scale = min(cell_width / width, cell_height / height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    # small pictures are shown pixel by pixel, large ones averaged
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    return cv2.resize(picture, size, interpolation=method)


def write_on(picture: Array, text: str) -> Array:
    """Return the picture with a line of text on a dark background in its top left corner."""
    picture = picture.copy()
    (width, _), _ = cv2.getTextSize(text, _FONT, 0.45, 1)
    picture[:_LINE, : width + 2 * _GAP] = _PAPER
    cv2.putText(picture, text, (_GAP, _LINE - 6), _FONT, 0.45, (_INK,) * 3, 1, cv2.LINE_AA)
    return picture


def _text_strip(labels: Sequence[str], width: int, spacing: int) -> Array:
    strip = np.full((_LINE, width, 3), _PAPER, np.uint8)
    for column, label in enumerate(labels):
        origin = (_GAP + column * (spacing + _GAP), _LINE - 6)
        cv2.putText(strip, label, origin, _FONT, 0.45, (_INK,) * 3, 1, cv2.LINE_AA)
    return strip


def _picture_strip(cells: list[Array], width: int, cell_width: int) -> Array:
    height = max(map(len, cells), default=0) + _GAP
    strip = np.full((height, width, 3), _PAPER, np.uint8)
    for column, cell in enumerate(cells):
        left = _GAP + column * (cell_width + _GAP)
        strip[: cell.shape[0], left : left + cell.shape[1]] = cell
    return strip


def draw_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure; width and height are in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "figures and plots need matplotlib: pip install 'dicl-flow[train]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def encode_figure(figure: Any, file_format: str = "png", dpi: int = 110) -> bytes:
    """Return the bytes of a .png or .svg; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {}
    with rc_context({"svg.hashsalt": "dicl-flow"}):
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def draw_motion(vectors: Mapping[str, Array]) -> bytes:
    """Return a PNG: lengths, their quantiles, and the directions of "all"; vectors are (N, 2)."""
    figure = draw_figure(13, 4)
    left, middle, right = figure.subplots(1, 3)
    bins, shares = np.geomspace(0.01, 500, 60), np.linspace(0, 1, 201)
    for name, pixels in vectors.items():
        length = np.linalg.norm(pixels, axis=1)
        left.hist(length.clip(bins[0], bins[-1]), bins, histtype="step", label=name)
        if len(length):
            middle.plot(shares * 100, np.quantile(length, shares), label=name)
    left.set(xscale="log", xlabel="length of the motion (px)", ylabel="pixels")
    left.legend()
    middle.set(yscale="symlog", xlabel="share of the pixels (%)", ylabel="motion at most (px)")
    middle.grid(alpha=0.3)
    x, y = vectors["all"].T
    extent = max(1.0, float(np.quantile(np.abs(vectors["all"]), 0.99)))
    counts, *_ = np.histogram2d(y, x, 80, [[-extent, extent]] * 2)
    right.imshow(np.log1p(counts), extent=(-extent, extent, extent, -extent), cmap="magma")
    right.set(xlabel="to the right (px)", ylabel="down (px)", title="motion of the pixels (log)")
    return encode_figure(figure)
