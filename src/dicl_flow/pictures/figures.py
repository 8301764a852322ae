"""Contact sheets of small labelled pictures; figures: the only gateway to matplotlib."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import cv2
import numpy as np

from ..errors import import_extra
from ..files import Array

PAPER, INK = 24, 230
SCALE = 0.45  # of letters, unless a picture needs larger ones
GAP = 4  # px between cells, and beside text of that scale
_LINE = 20  # px, height of a line of text of that scale
_FONT = cv2.FONT_HERSHEY_SIMPLEX


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
    width = len(column_labels) * (cell_width + GAP) + GAP
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


def write_on(picture: Array, text: str, scale: float = SCALE) -> Array:
    """Return the picture with a line of text on a dark background in its top left corner."""
    picture = picture.copy()
    line, gap = line_height(scale), round(GAP * scale / SCALE)
    picture[:line, : text_width(text, scale) + 2 * gap] = PAPER
    write_text(picture, text, (gap, line - round(0.3 * line)), scale)
    return picture


def write_text(picture: Array, text: str, origin: tuple[int, int], scale: float = SCALE) -> None:
    """Write into the picture; `origin` is where the first letter stands, x and y in px."""
    cv2.putText(picture, text, origin, _FONT, scale, (INK,) * 3, _stroke(scale), cv2.LINE_AA)


def text_width(text: str, scale: float = SCALE) -> int:
    """Return the width in px of a line of text."""
    return cv2.getTextSize(text, _FONT, scale, _stroke(scale))[0][0]


def line_height(scale: float = SCALE) -> int:
    """Return the height in px of a line of text."""
    return round(_LINE * scale / SCALE)


def _stroke(scale: float) -> int:
    return max(1, round(1.5 * scale))


def _text_strip(labels: Sequence[str], width: int, spacing: int) -> Array:
    strip = np.full((_LINE, width, 3), PAPER, np.uint8)
    for column, label in enumerate(labels):
        write_text(strip, label, (GAP + column * (spacing + GAP), _LINE - 6))
    return strip


def _picture_strip(cells: list[Array], width: int, cell_width: int) -> Array:
    height = max(map(len, cells), default=0) + GAP
    strip = np.full((height, width, 3), PAPER, np.uint8)
    for column, cell in enumerate(cells):
        left = GAP + column * (cell_width + GAP)
        strip[: cell.shape[0], left : left + cell.shape[1]] = cell
    return strip


def draw_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure; width and height are in inches."""
    library = import_extra("matplotlib.figure", "figures and plots need matplotlib", "train")
    return library.Figure(figsize=(width, height), layout="constrained")


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
