"""Scores of estimates by the truth or by warping; kept as sums, so that pairs pool exactly."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..data import FlowPair, FlowSample, read_frames, read_sample
from ..errors import InputError, refusing
from ..files import Array

_WAUC_THRESHOLDS = np.arange(1, 101) / 20  # px
_WAUC_WEIGHTS = 1 - np.arange(100) / 100
# what a pixel adds if the i-th threshold is the first that is not below its error
_WAUC_GAIN = 100 * np.append(_WAUC_WEIGHTS[::-1].cumsum()[::-1], 0) / _WAUC_WEIGHTS.sum()
REMOVED = np.arange(50) / 50  # shares of the pixels
_POINT = "sparsification_{}_{}"  # of a curve, among the parts of a score, which are pooled


class Metric(NamedTuple):
    """How a metric is shown."""

    heading: str
    digits: int
    meaning: str


_SPRING_REGIONS = (
    ("low_detail", "1px low detail", "of little detail"),
    ("high_detail", "1px high detail", "of much detail"),
    ("matched", "1px matched", "that are visible in both frames"),
    ("unmatched", "1px unmatched", "that are hidden in frame 2"),
    ("rigid", "1px rigid", "of rigid things"),
    ("nonrigid", "1px non-rigid", "of other things than rigid ones"),
    ("not_sky", "1px not sky", "outside the sky"),
    ("sky", "1px sky", "in the sky"),
    ("s0_10", "1px s0-10", "that move less than 10 px"),
    ("s10_40", "1px s10-40", "that move 10 to 40 px"),
    ("s40_plus", "1px s40+", "that move 40 px or more"),
)
SPRING_METRICS = tuple(f"over_1px_{name}" for name, _, _ in _SPRING_REGIONS)
_OPPOSITE = {"high_detail": "low_detail", "nonrigid": "rigid", "sky": "not_sky"}
METRICS = {
    "epe": Metric("EPE", 2, "mean end-point error over all pixels of the data set, px"),
    "epe_images": Metric("EPE images", 2, "mean over the pairs of each pair's mean error, px"),
    "over_1px": Metric("1px", 1, "pixels with an error above 1 px, %"),
    "over_3px": Metric("3px", 1, "pixels with an error above 3 px, %"),
    "over_5px": Metric("5px", 1, "pixels with an error above 5 px, %"),
    "fl_all": Metric("Fl-all", 1, "pixels with an error above 3 px and above 5 % of the motion, %"),
    "fl_images": Metric("Fl images", 1, "mean over the pairs of each pair's Fl-all, %"),
    "wauc": Metric("WAUC", 1, "weighted area under the curve of inliers from 0 to 5 px, %"),
    "s0_10": Metric("s0-10", 2, "EPE of pixels that move less than 10 px"),
    "s10_40": Metric("s10-40", 2, "EPE of pixels that move 10 to 40 px"),
    "s40_plus": Metric("s40+", 2, "EPE of pixels that move 40 px or more"),
    "matched": Metric("matched", 2, "EPE of pixels that are visible in both frames"),
    "unmatched": Metric("unmatched", 2, "EPE of pixels that are hidden in frame 2"),
    **{
        f"over_1px_{name}": Metric(heading, 1, f"pixels {where} with an error above 1 px, %")
        for name, heading, where in _SPRING_REGIONS
    },
    "ause": Metric(
        "AUSE",
        3,
        "area between the sparsification curve (the mean error of the rest after the least "
        "confident pixels are removed, relative to that of all) and that of the best ranking",
    ),
    "warping_error": Metric(
        "warping error",
        2,
        "mean difference in grey levels between frame 1 and frame 2 warped onto it, where the "
        "flow stays inside the frame; without ground truth, not an end-point error",
    ),
    "warping_error_still": Metric(
        "without motion", 2, "the same difference at the same pixels without warping"
    ),
}


@dataclass(frozen=True)
class Score:
    """The metrics of one pair, or of many: `score + score` pools their pixels."""

    parts: Mapping[str, tuple[float, int]]
    """By metric: a sum over pixels (over pairs for those of images), and their number."""

    def __add__(self, other: "Score") -> "Score":
        parts = dict(self.parts)
        for name, (total, count) in other.parts.items():
            old_total, old_count = parts.get(name, (0.0, 0))
            parts[name] = (old_total + total, old_count + count)
        return Score(parts)

    @property
    def values(self) -> dict[str, float]:
        """Each metric that has any pixel, in the order of `METRICS`."""
        known = [(name, *self.parts[name]) for name in METRICS if name in self.parts]
        return {name: total / count for name, total, count in known if count}


def pool(scores: Iterable[Score]) -> Score:
    """The score of all pairs together."""
    return sum(scores, start=Score({}))


def score_of(by_pixel: Mapping[str, Array]) -> Score:
    """Sum the values of each metric."""
    return Score({name: (float(v.sum()), v.size) for name, v in by_pixel.items()})


def check_estimate(estimate: Array, frame: Array) -> None:
    """Refuse what is not an (H, W, 2) flow of numbers for a frame (or a truth) of (H, W, …)."""
    expected = (*frame.shape[:2], 2)
    if estimate.shape != expected:
        raise InputError(f"the estimate has the shape {estimate.shape}, expected {expected}")
    if not np.isfinite(estimate).all():
        raise InputError("the estimate is unknown at some pixels; every pixel needs a number")


def endpoint_error(estimate: Array, truth: Array) -> Array:
    """Two (H, W, 2) flows -> (H, W) float64 distance in pixels."""
    check_estimate(estimate, truth)
    difference = estimate.astype(np.float64) - truth
    return np.hypot(difference[..., 0], difference[..., 1])


def sample_error(estimate: Array, sample: FlowSample) -> Array:
    """(H, W) float64: the distance from the truth; from the nearest one where there are four."""
    if sample.fine is None:
        return endpoint_error(estimate, sample.flow)
    check_estimate(estimate, sample.flow)
    difference = estimate[:, :, None].astype(np.float64) - sample.fine
    nearest: Array = np.hypot(difference[..., 0], difference[..., 1]).min(2)
    return nearest


def _speeds(sample: FlowSample) -> tuple[Array, Array]:
    """(N,) twice: the length of each valid vector; where there are four, their mean and longest."""
    if sample.fine is None:
        vectors = sample.flow[sample.valid].astype(np.float64)
        speed = np.hypot(vectors[:, 0], vectors[:, 1])
        return speed, speed
    vectors = sample.fine[sample.valid].astype(np.float64)  # (N, 4, 2)
    lengths = np.hypot(vectors[..., 0], vectors[..., 1])
    return lengths.mean(1), lengths.max(1)


def score_flow(estimate: Array, sample: FlowSample) -> Score:
    """Compare an (H, W, 2) estimate with the truth, where that is valid."""
    error = sample_error(estimate, sample)[sample.valid]  # (N,)
    speed, longest = _speeds(sample)
    outliers = 100.0 * ((error > 3) & (error > 0.05 * longest))
    over_1px = 100.0 * (error > 1)
    by_speed = {
        "s0_10": speed < 10,
        "s10_40": (speed >= 10) & (speed < 40),
        "s40_plus": speed >= 40,
    }
    by_pixel = {
        "epe": error,
        "epe_images": error.mean(keepdims=True) if error.size else error,
        "over_1px": over_1px,
        "over_3px": 100.0 * (error > 3),
        "over_5px": 100.0 * (error > 5),
        "fl_all": outliers,
        "fl_images": outliers.mean(keepdims=True) if error.size else error,
        "wauc": _WAUC_GAIN[np.searchsorted(_WAUC_THRESHOLDS, error)],
        **{name: error[where] for name, where in by_speed.items()},
    }
    seen = {}
    if sample.occluded is not None:
        occluded = sample.occluded[sample.valid]
        seen = {"matched": ~occluded, "unmatched": occluded}
        by_pixel |= {name: error[where] for name, where in seen.items()}
    if sample.fine is not None:
        regions = by_speed | seen | _regions(sample)
        by_pixel |= {f"over_1px_{name}": over_1px[where] for name, where in regions.items()}
    return score_of(by_pixel)


def _regions(sample: FlowSample) -> dict[str, Array]:
    """(N,) bool by name: where each valid pixel is, and what is opposite to that."""
    regions: dict[str, Array] = {}
    for name, region in sample.regions.items():
        inside = region[sample.valid]
        regions |= {name: inside, _OPPOSITE[name]: ~inside}
    return regions


def score_confidence(confidence: Array, error: Array) -> Score:
    """Judge (N,) confidences by the (N,) errors of a pair; a pair without errors has no score.

    Curves are the mean error of the rest for each share of `REMOVED`, divided by the mean error
    of the pair, so that all pairs have equal weight.
    """
    if not error.size or not error.any():
        return Score({})
    left = len(error) - (REMOVED * len(error)).astype(int)
    parts: dict[str, tuple[float, int]] = {}
    curves = {}
    for name, key in (("error", confidence), ("oracle", -error)):
        ordered = error[np.argsort(key, kind="stable")]
        curves[name] = ordered[::-1].cumsum()[left - 1] / left / error.mean()
        parts |= {_POINT.format(name, i): (float(v), 1) for i, v in enumerate(curves[name])}
    return Score({"ause": (float((curves["error"] - curves["oracle"]).mean()), 1), **parts})


def sparsification_curves(score: Score) -> dict[str, list[float]]:
    """Return `removed`, `error` and `oracle`, averaged over the pairs of a score; or nothing."""
    if "ause" not in score.parts:
        return {}
    means = {name: total / count for name, (total, count) in score.parts.items() if count}
    points = range(len(REMOVED))
    curves = {name: [means[_POINT.format(name, i)] for i in points] for name in ("error", "oracle")}
    return {"removed": REMOVED.tolist(), **curves}


def score_pair(pair: FlowPair, estimate: Array, confidence: Array | None = None) -> Score:
    """Score one (H, W, 2) estimate and its (H, W) confidence; an error names the pair."""
    with refusing(f"pair {pair.name}", InputError):
        if pair.truth is None:
            return score_by_warping(estimate, *read_frames(pair))
        sample = read_sample(pair)
        score = score_flow(estimate, sample)
        if confidence is None:
            return score
        if confidence.shape != (size := sample.valid.shape):
            raise InputError(f"the confidence has the shape {confidence.shape}, expected {size}")
        error = sample_error(estimate, sample)[sample.valid]
        return score + score_confidence(confidence[sample.valid], error)


def score_by_warping(estimate: Array, image1: Array, image2: Array) -> Score:
    """Judge an (H, W, 2) estimate without truth: how well frame 2, warped, matches frame 1."""
    difference, inside = warping_difference(estimate, image1, image2)
    still = np.abs(image1.astype(np.float64) - image2).mean(2)
    return score_of({"warping_error": difference[inside], "warping_error_still": still[inside]})


def warping_difference(estimate: Array, image1: Array, image2: Array) -> tuple[Array, Array]:
    """Return the mean difference of colours (H, W), and where the flow stays inside (H, W)."""
    from ..estimation.warping import warp

    check_estimate(estimate, image1)
    target = np.dstack([image2.astype(np.float64), np.ones(image2.shape[:2])])
    warped = warp(target, estimate)  # (H, W, 4): the last channel is 0 outside
    return np.abs(image1 - warped[..., :3]).mean(2), warped[..., 3] > 0


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

        def error(name: str) -> float:
            values = self.scores[name].values
            return values.get("epe", values.get("warping_error", 0.0))

        return sorted(self.scores, key=error, reverse=True)[:count]
