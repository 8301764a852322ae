"""Fits the calibration, which turns cues into a confidence, and judges the result."""

from dataclasses import dataclass

import numpy as np

from ..config import CUES, Calibration, RenderConfig
from ..errors import InputError
from ..files import Array
from .sparsification import score_confidence

CALIBRATION_SCENES = RenderConfig(
    depth_share=0.35, still_scenes=0.02, objects=(6, 18), object_radius=(0.02, 0.8)
)
"""The scenes of a fit: small objects and depth, where flow is most often wrong."""
_RIDGE = 1e-4  # keeps the weight of a constant cue at zero
_MAX_STEPS = 50
_DIGITS = 6  # so that rounding in a sum does not change the file


@dataclass(frozen=True)
class Evidence:
    """Pixels with their cues and errors."""

    cues: Array
    """(N, 7) float64, in the order of `CUES`."""
    error: Array
    """(N,) px."""

    @staticmethod
    def of(parts: "list[Evidence]") -> "Evidence":
        """Join the pixels of several scenes."""
        cues, errors = [part.cues for part in parts], [part.error for part in parts]
        return Evidence(np.concatenate(cues), np.concatenate(errors))


def fit_calibration(evidence: Evidence, threshold: float, scenes: int) -> Calibration:
    """Fit a logistic regression by Newton's method; the solution does not depend on the start."""
    right = evidence.error <= threshold
    if right.all() or not right.any():
        raise InputError(
            f"the error is {'always' if right.all() else 'never'} within {threshold:g} px on these "
            f"scenes, so there is nothing to fit; choose another `threshold`"
        )
    mean, scale = evidence.cues.mean(0), evidence.cues.std(0)
    scale = np.where(scale > 0, scale, 1)
    weights, bias = _logistic_regression((evidence.cues - mean) / scale, right)
    weights = weights / scale
    bias = bias - weights @ mean
    rounded = [float(f"{value:.{_DIGITS}g}") for value in (bias, *weights)]
    named = dict(zip(("bias", *CUES), rounded, strict=True))
    return Calibration(**named, threshold=threshold, scenes=scenes)


def probability(calibration: Calibration, cues: Array) -> Array:
    """(N, 7) cues -> (N,) confidence, as the estimator computes it."""
    return _sigmoid(cues @ np.array(calibration.weights) + calibration.bias)


def judge(confidence: Array, error: Array, threshold: float) -> dict[str, float]:
    """Judge (N,) confidences: AUSE, calibration error, and the mean error by deciles.

    The calibration error is the mean distance, over ten groups of equal size, between the
    mean confidence and the share of pixels that are right.
    """
    groups = np.array_split(np.argsort(confidence, kind="stable"), 10)
    gaps = [abs(confidence[g].mean() - (error[g] <= threshold).mean()) for g in groups]
    deciles = {f"decile_{i}": float(error[g].mean()) for i, g in enumerate(groups, start=1)}
    ause = score_confidence(confidence, error).values["ause"]
    return {"ause": ause, "calibration_error": float(np.mean(gaps)), **deciles}


def _logistic_regression(inputs: Array, right: Array) -> tuple[Array, float]:
    """(N, K) standardised inputs, (N,) bool -> K weights and a bias."""
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    solution = np.zeros(inputs.shape[1])
    ridge = _RIDGE * np.eye(len(solution))
    for _ in range(_MAX_STEPS):
        chance = _sigmoid(inputs @ solution)
        gradient = inputs.T @ (chance - right) / len(right) + ridge @ solution
        curvature = (inputs * (chance * (1 - chance))[:, None]).T @ inputs / len(right) + ridge
        step = np.linalg.solve(curvature, gradient)
        solution -= step
        if np.abs(step).max() < 1e-9:
            break
    return solution[:-1], float(solution[-1])


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))  # does not overflow
