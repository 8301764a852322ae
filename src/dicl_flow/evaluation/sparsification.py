"""Sparsification: how the error falls when the least confident pixels are removed."""

import numpy as np

from ..files import Array
from .metrics import Score

REMOVED = np.arange(50) / 50  # shares of the pixels
_CURVES = ("error", "oracle")


def sparsification(key: Array, error: Array) -> Array:
    """Return the mean error of the rest, for each share of `REMOVED` of the lowest `key`."""
    ordered = error[np.argsort(key, kind="stable")]
    left = len(error) - (REMOVED * len(error)).astype(int)
    return ordered[::-1].cumsum()[left - 1] / left


def score_confidence(confidence: Array, error: Array) -> Score:
    """Judge (N,) confidences by the (N,) errors of a pair; a pair without errors has no score.

    Curves are divided by the mean error of the pair, so that all pairs have equal weight.
    """
    if not error.size or not error.any():
        return Score({})
    curves = [sparsification(key, error) / error.mean() for key in (confidence, -error)]
    parts = {"ause": (float((curves[0] - curves[1]).mean()), 1)}
    for name, curve in zip(_CURVES, curves, strict=True):
        parts |= {_part(name, index): (float(value), 1) for index, value in enumerate(curve)}
    return Score(parts)


def sparsification_curves(score: Score) -> dict[str, list[float]]:
    """Return `removed`, `error` and `oracle`, averaged over the pairs of a score; or nothing."""
    if "ause" not in score.parts:
        return {}
    means = {name: total / count for name, (total, count) in score.parts.items() if count}
    curves = {name: [means[_part(name, i)] for i in range(len(REMOVED))] for name in _CURVES}
    return {"removed": REMOVED.tolist(), **curves}


def _part(curve: str, index: int) -> str:
    """Return the name of a point of a curve among the parts of a score, which are pooled."""
    return f"sparsification_{curve}_{index}"
