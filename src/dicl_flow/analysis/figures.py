"""What all figures share: matplotlib, which an extra brings, and bytes to write."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np

from ..errors import InputError
from ..inputs import Array


def draw_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'dicl-flow[train]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def encode_figure(figure: Any, file_format: str = "png") -> bytes:
    """Return the bytes of a .png or .svg; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {}
    with rc_context({"svg.hashsalt": "dicl-flow"}):
        figure.savefig(buffer, format=file_format, dpi=110, metadata=metadata)
    return buffer.getvalue()


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of an .npz."""
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()
