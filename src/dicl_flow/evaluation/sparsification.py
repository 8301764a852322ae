"""Does the confidence know where the errors are? Take the least confident pixels away and see."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..render.statistics import plotting
from .metrics import Array, Score

if TYPE_CHECKING:
    from .score import Result

REMOVED = np.arange(50) / 50  # shares of the pixels
_CURVES = ("error", "oracle")


def sparsification(key: Array, error: Array) -> Array:
    """Mean error of what is left when the first of `REMOVED` in the order of `key` are gone."""
    ordered = error[np.argsort(key, kind="stable")]
    left = len(error) - (REMOVED * len(error)).astype(int)
    return ordered[::-1].cumsum()[left - 1] / left


def score_confidence(confidence: Array, error: Array) -> Score:
    """Judge (N,) confidences by the (N,) errors of a pair; a pair without error says nothing.

    Curves are divided by the mean error of the pair, and pairs are averaged, so that each
    counts alike.
    """
    if not error.size or not error.any():
        return Score({})
    curves = [sparsification(key, error) / error.mean() for key in (confidence, -error)]
    parts = {"ause": (float((curves[0] - curves[1]).mean()), 1)}
    for name, curve in zip(_CURVES, curves, strict=True):
        parts |= {_part(name, index): (float(value), 1) for index, value in enumerate(curve)}
    return Score(parts)


def sparsification_curves(score: Score) -> dict[str, list[float]]:
    """`removed`, `error` and `oracle` of a score, averaged over its pairs; empty without any."""
    if "ause" not in score.parts:
        return {}
    means = {name: total / count for name, (total, count) in score.parts.items() if count}
    curves = {name: [means[_part(name, i)] for i in range(len(REMOVED))] for name in _CURVES}
    return {"removed": REMOVED.tolist(), **curves}


def draw_sparsification(results: "Sequence[Result]") -> bytes:
    """Return a PNG: a panel for each data set, a curve for each method, dashed the best order."""
    panels: dict[str, list[Result]] = {}
    for result in results:
        if "ause" in result.total.parts:
            panels.setdefault(result.label, []).append(result)
    if not panels:
        raise InputError("nothing to draw: no method here has a confidence and a truth to judge it")
    figure = plotting().Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, (label, group) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _draw_panel(axes, group)
        axes.set(title=label, xlabel="least confident pixels taken away (%)", ylim=(0, None))
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _draw_panel(axes: Any, results: "Sequence[Result]") -> None:
    for result in results:
        curves = sparsification_curves(result.total)
        label = f"{result.method}, AUSE {result.total.values['ause']:.3f}"
        (line,) = axes.plot(100 * REMOVED, curves["error"], label=label)
        axes.plot(100 * REMOVED, curves["oracle"], "--", color=line.get_color())
    axes.set_ylabel("error of the rest / of all")
    axes.legend()
    axes.grid(alpha=0.3)


def _part(curve: str, index: int) -> str:
    """Under this name a point of a curve lies among a score's parts, and is pooled like them."""
    return f"sparsification_{curve}_{index}"
