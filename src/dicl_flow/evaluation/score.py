"""Scores estimates against the truth, or by warping where there is none."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..data import FlowPair, read_frames, read_sample
from ..errors import InputError
from ..files import Array
from .methods import Prediction
from .metrics import (
    Score,
    check_estimate,
    endpoint_error,
    pool,
    score_confidence,
    score_flow,
    score_of,
)


@dataclass(frozen=True)
class Result:
    """The scores of one method on one data set."""

    data: str
    """The data set's name on the command line."""
    label: str
    """Its name in tables."""
    method: str
    scores: Mapping[str, Score]
    """By the name of the pair."""
    num_masked: int = 0
    """Number of pairs whose invalid pixels were left out."""

    @property
    def total(self) -> Score:
        """The score of all pairs together."""
        return pool(self.scores.values())

    def worst(self, count: int) -> list[str]:
        """Names of the pairs with the largest error, worst first."""
        return sorted(self.scores, key=lambda name: -badness(self.scores[name]))[:count]


def badness(score: Score) -> float:
    """Return the error by which pairs are sorted: EPE, or without truth the warping error."""
    values = score.values
    return values.get("epe", values.get("warping_error", 0.0))


def score_predictions(predictions: Iterable[Prediction]) -> dict[str, Score]:
    """Score each predicted pair, by name."""
    return {prediction[0].name: score_pair(*prediction) for prediction in predictions}


def score_pair(pair: FlowPair, estimate: Array, confidence: Array | None = None) -> Score:
    """Score one (H, W, 2) estimate and its (H, W) confidence; an error names the pair."""
    try:
        if pair.truth is None:
            return score_by_warping(estimate, *read_frames(pair))
        sample = read_sample(pair)
        score = score_flow(estimate, sample)
        if confidence is None:
            return score
        error = endpoint_error(estimate, sample.flow)[sample.valid]
        return score + score_confidence(confidence[sample.valid], error)
    except InputError as error:
        raise InputError(f"pair {pair.name}: {error}") from None


def score_by_warping(estimate: Array, image1: Array, image2: Array) -> Score:
    """Judge an (H, W, 2) estimate without truth: how well frame 2, warped, matches frame 1."""
    difference, inside = warping_difference(estimate, image1, image2)
    still = np.abs(image1.astype(np.float64) - image2).mean(2)
    return score_of({"warping_error": difference[inside], "warping_error_still": still[inside]})


def warping_difference(estimate: Array, image1: Array, image2: Array) -> tuple[Array, Array]:
    """Return the mean difference of colours (H, W), and where the flow stays inside (H, W)."""
    from ..estimation.warping import warp

    check_estimate(estimate, (image1.shape[0], image1.shape[1]))
    target = np.dstack([image2.astype(np.float64), np.ones(image2.shape[:2])])
    warped = warp(target, estimate)  # (H, W, 4): the last channel is 0 outside
    return np.abs(image1 - warped[..., :3]).mean(2), warped[..., 3] > 0
