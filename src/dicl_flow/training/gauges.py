"""What a run shows: gauges of each level, and a contact sheet of training pairs.

The loss does not show a level that learns nothing.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from ..data import FlowBatch
from ..files import Array, to_uint8
from ..models import LevelFlow
from ..ops import at_least_float32, size_of, upsample_flow
from ..pictures.visualize import flow_to_rgb, full_color

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
        distance = torch.linalg.vector_norm(flow - batch.flow, dim=1)
        return (distance * batch.valid).sum() / count

    found = {ZERO: error(torch.zeros_like(batch.flow))}
    for stride, level in zip(strides, levels, strict=True):
        found[name_of(stride, "matched_error")] = error(upsample(level.matched, size))
        found[name_of(stride, "refined_error")] = error(upsample(level.refined, size))
        found[name_of(stride, "entropy")] = level.entropy.mean()
        if level.scores is not None:
            found[name_of(stride, "no_displacement")] = _no_displacement(level.scores).mean()
    values: list[float] = torch.stack([value.float() for value in found.values()]).tolist()
    return dict(zip(found, values, strict=True))


def name_of(stride: int, gauge: str) -> str:
    """Return the name of a gauge of a level in logs."""
    return f"stride_{stride}/{gauge}"


class LevelWatch:
    """Reports levels that have contributed nothing for many steps.

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
        names = [ZERO, *(name_of(stride, "refined_error") for stride in self._strides)]
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
    rows = []
    for index in range(min(_ROWS, len(batch.flow))):
        truth = batch.flow[index].permute(1, 2, 0).cpu().numpy()
        truth = np.where(batch.valid[index].cpu().numpy()[..., None], truth, np.nan)
        maximum = full_color(truth)
        found = estimate[index].permute(1, 2, 0).float().cpu().numpy()
        frames = [
            to_uint8(image[index].permute(1, 2, 0).float().nan_to_num().cpu().numpy())
            for image in (batch.image1, batch.image2)
        ]
        rows.append(np.hstack([*frames, flow_to_rgb(truth, maximum), flow_to_rgb(found, maximum)]))
    return np.vstack(rows)


def _no_displacement(scores: Tensor) -> Tensor:
    """(B, U, V, H, W) scores -> (B, H, W) probability of zero displacement."""
    _, num_u, num_v, _, _ = scores.shape
    scores = at_least_float32(scores)
    still = scores[:, num_u // 2, num_v // 2]
    return (still - scores.flatten(1, 2).logsumexp(1)).exp()
