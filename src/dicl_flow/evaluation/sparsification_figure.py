"""The figure of sparsification curves."""

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..pictures.figures import draw_figure, encode_figure
from .score import Result
from .sparsification import REMOVED, sparsification_curves


def draw_sparsification(results: Sequence[Result]) -> bytes:
    """Return a PNG: a panel for each data set, a curve for each method; dashed: best ranking."""
    panels: dict[str, list[Result]] = {}
    for result in results:
        if "ause" in result.total.parts:
            panels.setdefault(result.label, []).append(result)
    if not panels:
        raise InputError("nothing to draw: no method has a confidence, or no pair has a truth")
    figure = draw_figure(4.2 * len(panels), 3.6)
    for axes, (label, group) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _draw_panel(axes, group)
        axes.set(title=label, xlabel="least confident pixels removed (%)", ylim=(0, None))
    return encode_figure(figure)


def _draw_panel(axes: Any, results: Sequence[Result]) -> None:
    for result in results:
        curves = sparsification_curves(result.total)
        label = f"{result.method}, AUSE {result.total.values['ause']:.3f}"
        (line,) = axes.plot(100 * REMOVED, curves["error"], label=label)
        axes.plot(100 * REMOVED, curves["oracle"], "--", color=line.get_color())
    axes.set_ylabel("error of the rest / error of all")
    axes.legend()
    axes.grid(alpha=0.3)
