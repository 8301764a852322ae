"""Does the confidence know where the errors are? Take the least confident pixels away and see."""

import numpy as np

from ..files import Array
from .metrics import Score

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


def _part(curve: str, index: int) -> str:
    """Under this name a point of a curve lies among a score's parts, and is pooled like them."""
    return f"sparsification_{curve}_{index}"
