"""The only gateway to matplotlib, an optional dependency; and the figure of motion."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import Array


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
    lengths = {name: np.linalg.norm(v, axis=1) for name, v in vectors.items()}
    _draw_histogram(left, lengths)
    _draw_quantiles(middle, lengths)
    _draw_directions(right, vectors["all"])
    return encode_figure(figure)


def _draw_histogram(axes: Any, lengths: dict[str, Array]) -> None:
    bins = np.geomspace(0.01, 500, 60)
    for name, length in lengths.items():
        axes.hist(length.clip(bins[0], bins[-1]), bins, histtype="step", label=name)
    axes.set(xscale="log", xlabel="length of the motion (px)", ylabel="pixels")
    axes.legend()


def _draw_quantiles(axes: Any, lengths: dict[str, Array]) -> None:
    shares = np.linspace(0, 1, 201)
    for name, length in lengths.items():
        if len(length):
            axes.plot(shares * 100, np.quantile(length, shares), label=name)
    axes.set(yscale="symlog", xlabel="share of the pixels (%)", ylabel="motion at most (px)")
    axes.grid(alpha=0.3)


def _draw_directions(axes: Any, vectors: Array) -> None:
    extent = max(1.0, float(np.quantile(np.abs(vectors), 0.99)))
    limits = [[-extent, extent]] * 2
    counts, *_ = np.histogram2d(vectors[:, 1], vectors[:, 0], 80, limits)
    axes.imshow(np.log1p(counts), extent=(-extent, extent, extent, -extent), cmap="magma")
    axes.set(xlabel="to the right (px)", ylabel="down (px)", title="motion of the pixels (log)")
