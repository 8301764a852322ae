"""How far a flow leads a point astray, and whether the point is visible where it leads.

Two linear models of what is known of a flow at a point (`CUES`): one gives the logarithm of the
expected error, one the logit of the probability that the point is visible. They are fitted to
rendered clips, for intervals of 1 to 64 frames, by benchmarks/calibrate_tracks.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from math import isfinite, log, log2
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..config.strict import JsonConfig
from ..errors import InputError
from ..estimation.result import unpack
from ..ops import Size, sample_clamped, size_of

_SURE = 0.999  # confidence above which there is no difference, nor below 1 - _SURE
_FINE = 0.1  # px: disagreement below which there is little difference
LARGEST = 64.0  # px: larger errors count as this, so that they do not outweigh the fine ones
_SMALLEST = 0.02  # px
_RIDGE = 1e-4  # keeps the weight of a constant cue at zero
_DIGITS = 6


@dataclass(frozen=True)
class LinearModel:
    """A bias, and a weight for each cue."""

    bias: float
    confidence: float
    """Logit of the confidence of the flow at the point."""
    way_back: float
    """Logit of the confidence of the backward flow where the flow leads."""
    disagreement: float
    """log(0.1 + px by which the backward flow misses the point)."""
    miss: float
    """log(1 + px) of the same: it grows only beyond a pixel."""
    length: float
    """log(1 + px) of the flow."""
    edge: float
    """log(1 + px) of the difference of the flow between the neighbours on both axes."""
    interval: float
    """log2 of the frames that the flow spans."""
    outside: float
    """1 where the flow leaves the frame."""

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.bias, *self.weights))):
            raise InputError("the calibration of tracks contains NaN or infinite values")

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of `CUES`."""
        return tuple(getattr(self, cue) for cue in CUES)

    def __call__(self, cues: Tensor) -> Tensor:
        """(C, P) cues -> (P,)."""
        total = torch.full_like(cues[0], self.bias)
        for weight, cue in zip(self.weights, cues, strict=True):
            total += weight * cue  # numbers, not a tensor: nothing is copied to the device
        return total


CUES = tuple(field.name for field in fields(LinearModel) if field.name != "bias")
"""What is known of a flow at a point, in this order."""


@dataclass(frozen=True)
class TrackCalibration(JsonConfig):
    """The models of error and visibility, and what they were fitted to.

    With other weights they are used all the same: then they rank flows, but the errors that they
    expect may be wrong.
    """

    _CALLED = "the calibration of tracks"

    error: LinearModel
    """Of the logarithm of the expected error in px, of points that are visible."""
    visible: LinearModel
    """Of the logit of the probability of being visible."""
    sure: float = 0.8
    """The probability from which a flow says that a point is visible. Above one half: several
    flows lead to each frame, and one that says so is enough."""
    lost: float = 0.01
    """The expected error from which a point is lost and counts as hidden, as a share of the frame's
    shorter side."""
    alike: float = 1.4
    """How errors of the flows of a chain add up: as powers of this. 2: they are independent; 1:
    they are the same."""
    fitted: bool = False
    """Whether the numbers were fitted; if not, they were chosen by hand."""
    clips: int = 0
    """Number of rendered clips it was fitted to."""
    quality: str = "normal"
    weights: str = ""
    """sha256 of the weights of the network."""
    date: str = ""

    def expected_error(self, cues: Tensor) -> Tensor:
        """(C, P) cues -> (P,) px, if the point is visible."""
        return self.error(cues).clamp(log(_SMALLEST), log(LARGEST)).exp()

    def visibility(self, cues: Tensor) -> Tensor:
        """(C, P) cues -> (P,) the probability that the point is visible where the flow leads."""
        return self.visible(cues).sigmoid()

    def add(self, *errors: Tensor) -> Tensor:
        """The expected error of a chain, from those of its parts."""
        total = torch.stack([error.pow(self.alike) for error in errors]).sum(0)
        return total.pow(1 / self.alike)


@cache
def packaged_calibration() -> TrackCalibration:
    """The calibration for the packaged weights."""
    path = Path(__file__).with_name("calibration.json")
    return TrackCalibration.from_json(path.read_text(encoding="utf-8"))


class FlowAtPoints(NamedTuple):
    """A flow read at P points."""

    vectors: Tensor
    """(P, 2) px."""
    cues: Tensor
    """(C, P), in the order of `CUES`."""
    inside: Tensor
    """(P,) bool: whether it ends in the frame."""


def read_flow_at(packed: Tensor, points: Tensor, interval: int) -> FlowAtPoints:
    """A packed estimate (1, 6 or 8, H, W) of both ways, and (P, 2) points of its first frame."""
    forward, backward = (torch.cat(estimate, 1) for estimate in unpack(packed))
    column, row = points.unbind(1)
    # (5, P, 2): the points and their neighbours, right, left, below, above
    around = torch.stack(
        [
            torch.stack([column, column + 1, column - 1, column, column]),
            torch.stack([row, row, row, row + 1, row - 1]),
        ],
        2,
    )
    x, y, confidence = _read(forward, around.flatten(0, 1)).unflatten(1, (5, -1))  # (5, P) each
    vectors = torch.stack([x[0], y[0]], 1)
    target = points + vectors
    back_x, back_y, back_confidence = _read(backward, target)
    inside = is_inside(target, size_of(packed))
    miss = torch.hypot(x[0] + back_x, y[0] + back_y)
    edge = torch.hypot(x[1] - x[2], y[1] - y[2]) + torch.hypot(x[3] - x[4], y[3] - y[4])
    cues = [
        _logit(confidence[0]),
        _logit(back_confidence),
        torch.log(miss + _FINE),
        torch.log1p(miss),
        torch.log1p(torch.hypot(x[0], y[0])),
        torch.log1p(edge),
        torch.full_like(miss, log2(interval)),
        (~inside).to(miss.dtype),
    ]
    return FlowAtPoints(vectors, torch.stack(cues), inside)


def is_inside(points: Tensor, size: Size) -> Tensor:
    """(P, 2) px -> (P,) bool: whether a pixel of the frame contains the point."""
    x, y = points.unbind(1)
    return (x >= -0.5) & (x < size[1] - 0.5) & (y >= -0.5) & (y < size[0] - 0.5)


def _read(values: Tensor, points: Tensor) -> Tensor:
    """(1, C, H, W) -> (C, P): bilinear; outside the frame, at its nearest edge."""
    height, width = size_of(values)
    x, y = points.unbind(1)
    grid = torch.stack([2 * x / max(width - 1, 1) - 1, 2 * y / max(height - 1, 1) - 1], 1)
    return sample_clamped(values, grid[None, None])[0, :, 0]


def _logit(probability: Tensor) -> Tensor:
    return probability.clamp(1 - _SURE, _SURE).logit()


def fit(
    cues: Tensor, error: Tensor, visible: Tensor, weights: Tensor | None = None
) -> TrackCalibration:
    """Fit both models to (C, N) cues, (N,) errors in px and (N,) bool: whether visible.

    The error is that of visible points; it counts as exponentially distributed, so that the mean
    error of points with the same expected error is that. `weights` (N,) count samples.
    """
    if visible.all() or not visible.any():
        raise InputError("to fit the visibility, some points must be visible and some hidden")
    cues, error = cues.double(), error.double().clamp(max=LARGEST)
    share = torch.ones_like(error) if weights is None else weights.double()

    def exponential(log_mean: Tensor) -> Tensor:
        return log_mean + error[visible] * torch.exp(-log_mean)

    def logistic(logit: Tensor) -> Tensor:
        return torch.nn.functional.softplus(torch.where(visible, -logit, logit))

    return TrackCalibration(
        _fit_model(cues[:, visible], share[visible], exponential),
        _fit_model(cues, share, logistic),
        fitted=True,
    )


@torch.inference_mode(mode=False)
def _fit_model(cues: Tensor, share: Tensor, loss_of: Callable[[Tensor], Tensor]) -> LinearModel:
    """Minimise the weighted mean of a convex loss: there is one solution."""
    mean, scale = cues.mean(1, keepdim=True), cues.std(1, keepdim=True)
    scale = scale.where(scale > 0, 1)
    inputs, share = (cues - mean) / scale, share / share.sum()
    solution = cues.new_zeros(len(cues) + 1, requires_grad=True)  # weights, bias
    search = torch.optim.LBFGS(
        [solution], max_iter=500, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def objective() -> float:
        search.zero_grad()
        loss = (share * loss_of(solution[:-1] @ inputs + solution[-1])).sum()
        loss = loss + _RIDGE * solution[:-1].square().sum()
        loss.backward()
        return float(loss.detach())

    search.step(objective)
    slopes = solution[:-1].detach() / scale[:, 0]
    bias = solution[-1].detach() - slopes @ mean[:, 0]
    rounded = (float(f"{value:.{_DIGITS}g}") for value in [float(bias), *slopes.tolist()])
    return LinearModel(*rounded)
