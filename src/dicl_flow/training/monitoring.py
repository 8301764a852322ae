"""What is measured during a run: gauges of each level, pictures, errors on whole frames."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from ..config import NORMAL, TrainConfig
from ..data import FlowBatch, FlowPair, list_pairs, read_sample
from ..estimation.estimator import FlowEstimator
from ..files import Array, to_uint8
from ..models import LevelFlow
from ..ops import at_least_float32, length, size_of, upsample_flow
from ..pictures.visualize import flow_to_rgb, full_color
from ..weights import Weights, load_model
from .distributed import Processes
from .recipe import find_root

ZERO = "zero_flow_error"  # px: the error of zero flow
_WINDOW = 1000  # steps without a gain before a level is reported
_LEAST_GAIN = 0.01  # share of the error; less may be chance
_ROWS = 4  # of the contact sheet

Gauges = dict[str, float]


@torch.no_grad()
def level_gauges(
    levels: Sequence[LevelFlow],
    batch: FlowBatch,
    strides: Sequence[int],
    upsample: Callable[[Tensor, tuple[int, int]], Tensor],
) -> Gauges:
    """Return mean errors in px, the entropy and the probability of zero displacement, by stride.

    `upsample` brings the flow of a level to full size, as `FlowNetwork.upsample` does.
    """
    size = size_of(batch.flow)
    count = batch.valid.sum().clamp(min=1)

    def error(flow: Tensor) -> Tensor:
        distance = length(flow - batch.flow)
        return (distance * batch.valid).sum() / count

    gauges = {ZERO: error(torch.zeros_like(batch.flow))}
    for stride, level in zip(strides, levels, strict=True):
        gauges[f"stride_{stride}/matched_error"] = error(upsample(level.matched, size))
        gauges[f"stride_{stride}/refined_error"] = error(upsample(level.refined, size))
        gauges[f"stride_{stride}/entropy"] = level.entropy.mean()
        if level.scores is not None:
            gauges[f"stride_{stride}/no_displacement"] = _no_displacement(level.scores).mean()
    values: list[float] = torch.stack([value.float() for value in gauges.values()]).tolist()
    return dict(zip(gauges, values, strict=True))


def _no_displacement(scores: Tensor) -> Tensor:
    """(B, U, V, H, W) scores -> (B, H, W) probability of zero displacement."""
    _, num_u, num_v, _, _ = scores.shape
    scores = at_least_float32(scores)
    still = scores[:, num_u // 2, num_v // 2]
    return (still - scores.flatten(1, 2).logsumexp(1)).exp()


class LevelWatch:
    """Reports levels that have contributed nothing for many steps; the loss does not show them.

    A level contributes if its refined flow has a smaller error than the flow of the coarser level;
    the coarsest level, if it has a smaller error than zero flow.
    """

    def __init__(self, strides: Sequence[int], step: int) -> None:
        self._strides, self._since = tuple(strides), step
        self._noted: list[Gauges] = []

    def note(self, step: int, gauges: Gauges) -> list[str]:
        """Add the gauges of a step; return a sentence for each level that contributes nothing."""
        self._noted.append(gauges)
        if step - self._since < _WINDOW:
            return []
        names = [ZERO, *(f"stride_{stride}/refined_error" for stride in self._strides)]
        errors = [fmean(noted[name] for noted in self._noted) for name in names]
        self._noted, self._since = [], step
        return [
            f"step {step}: the level of stride {stride} contributes nothing: over {_WINDOW:,} "
            f"steps the error is {after:.2f} px after it and {before:.2f} px before it"
            for stride, (before, after) in zip(self._strides, pairwise(errors), strict=True)
            if after > (1 - _LEAST_GAIN) * before
        ]


def training_sheet(batch: FlowBatch, levels: Sequence[LevelFlow]) -> Array:
    """Frame 1, frame 2, truth and estimate of the first pairs of a batch, one row each."""
    estimate = upsample_flow(levels[-1].refined.detach(), size_of(batch.flow))
    truth = torch.where(batch.valid[:, None], batch.flow, torch.nan)
    rows = []
    for index in range(min(_ROWS, len(truth))):
        tensors = (batch.image1, batch.image2, truth, estimate)
        arrays = [tensor[index].permute(1, 2, 0).float().cpu().numpy() for tensor in tensors]
        frames = [to_uint8(np.nan_to_num(image)) for image in arrays[:2]]
        flows = [flow_to_rgb(flow, full_color(arrays[2])) for flow in arrays[2:]]
        rows.append(np.hstack([*frames, *flows]))
    return np.vstack(rows)


@dataclass(frozen=True)
class Validated:
    """The results of the validations of a run so far."""

    step: int = 0
    """The last one; 0: none."""
    best_step: int = 0
    best_epe: float = inf

    def after(self, step: int, epe: float) -> "Validated":
        """Return the results after another validation."""
        if epe < self.best_epe:
            return Validated(step, step, epe)
        return Validated(step, self.best_step, self.best_epe)

    def best(self) -> dict[str, int | float | None]:
        """Return step and error of the best weights, for JSON: None if there are none."""
        step = self.best_step or None
        return {"best_step": step, "best_epe": self.best_epe if step else None}


class Validation:
    """The pairs of each data set to validate on."""

    def __init__(self, pairs: Mapping[str, Sequence[FlowPair]], quality: str = NORMAL) -> None:
        self.pairs, self.quality = pairs, quality

    @classmethod
    def of(cls, config: TrainConfig, roots: Mapping[str, Path]) -> "Validation | None":
        """List the pairs that a recipe names; None: it does not validate."""
        if not config.validate_every:
            return None
        names = config.validation
        found = {n: list_pairs(n, find_root(n, roots), needs_truth=True) for n in names}
        return cls(found, config.quality)

    def errors(self, weights: Weights, processes: Processes) -> dict[str, float]:
        """Return the mean end-point error in px on each data set; every process takes a share.

        The weights are copied into another network: nothing of the training changes.
        """
        device = str(processes.device)
        model, how = load_model(weights, self.quality), (device, "fp32", "plain")
        estimator = FlowEstimator(model, *how, quality=self.quality)
        return {name: _error(pairs, estimator, processes) for name, pairs in self.pairs.items()}


def _error(pairs: Sequence[FlowPair], estimator: FlowEstimator, processes: Processes) -> float:
    """Return the mean over the pairs of each pair's mean over its valid pixels, as the authors do.

    For dense truth in frames of one size, that is the mean over all pixels; for KITTI it is not.
    """
    total, count = 0.0, 0.0
    for pair in pairs[processes.rank :: processes.world_size]:
        sample = read_sample(pair)
        flow = estimator(sample.image1, sample.image2).flow
        error = np.linalg.norm(flow - sample.flow, axis=-1)[sample.valid]
        if error.size:
            total, count = total + float(error.mean(dtype=np.float64)), count + 1
    if processes.world_size > 1:
        sums = torch.tensor([total, count], dtype=torch.float64, device=processes.device)
        total, count = processes.sum(sums).tolist()
    return total / max(count, 1)
