"""The only gateway to matplotlib, an optional dependency: an empty figure, and its bytes."""

from io import BytesIO
from typing import Any

from ..errors import InputError


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
