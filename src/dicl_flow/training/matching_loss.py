"""Cross-entropy of the scores: trains a level to match before its flow is useful."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..config import LossConfig
from ..data import FlowBatch
from ..models import LevelFlow
from ..ops import at_least_float32

_STILL, _FASTEST = (
    0.25,
    2.0,
)  # weight without motion; motion in cells above which the weight no longer grows


def matching_weight(config: LossConfig, progress: float) -> float:
    """Return the factor of the cross-entropy; `progress` goes from 0 to 1 over the run."""
    first, last = config.matching_weight
    return first + (last - first) * min(max(progress, 0.0), 1.0)


def matching_loss(
    levels: Sequence[LevelFlow],
    batch: FlowBatch,
    weights: Sequence[float],
    average: Callable[[Tensor], Tensor],
    *,
    accelerated: bool = False,
) -> Tensor:
    """Sum over levels of weight times the mean cross-entropy of the scores.

    A soft-argmax that is trained by its end-point error alone first learns zero displacement where
    motion is a fraction of a cell. Then it is saturated and has no gradient; the cross-entropy
    always has one. `average` is the mean of a number over the processes that share a batch.
    `accelerated` uses a kernel.
    """
    loss = batch.flow.new_zeros(())
    for weight, level in zip(weights, levels, strict=True):
        if weight:
            add = _accelerated_sum if accelerated else _plain_sum
            entropy, count = add(level, batch.flow, batch.valid)
            loss = loss + weight * entropy / average(count).clamp(min=1e-6)
    return loss


def _plain_sum(level: LevelFlow, truth: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of the cross-entropy, and the sum of the weights."""
    entropy, count = score_entropy(level, truth, valid)
    return (entropy * count).sum(), count.sum()


def _accelerated_sum(level: LevelFlow, truth: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    from ..accelerated.losses import entropy_sum

    assert level.scores is not None
    rest, count = _targets(level, truth, valid)
    return entropy_sum(level.scores, rest, count), count.sum()


def score_entropy(level: LevelFlow, truth: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of the scores of a level at four points per cell, and its weights.

    Both are (B, 4, H, W). The target distribution has the bilinear weights of the four
    displacements around the remaining motion, so that its mean is that motion; the other
    displacements enter through the softmax only.
    """
    assert level.scores is not None
    scores = at_least_float32(level.scores)  # (B, U, V, H, W)
    rest, count = _targets(level, truth, valid)
    side = scores.shape[1]
    radius = side // 2
    low = rest.floor().clamp(-radius, radius - 1)
    x, y = (rest - low).unbind(1)  # (B, 4, H, W) in [0, 1]
    first = ((low[:, 0] + radius) * side + low[:, 1] + radius).long()
    around = torch.stack([first, first + 1, first + side, first + side + 1], 1)
    target = torch.stack([(1 - x) * (1 - y), (1 - x) * y, x * (1 - y), x * y], 1)
    flat = scores.flatten(1, 2)
    chosen = flat.gather(1, around.flatten(1, 2)).unflatten(1, (4, 4))  # (B, around, points, H, W)
    return flat.logsumexp(1, keepdim=True) - (target * chosen).sum(1), count


def _targets(level: LevelFlow, truth: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the remaining motion at four points per cell, (B, 2, 4, H, W) in cells, and weights.

    Moving points have a larger weight. Weight and motion are 0 where the truth is invalid or
    farther from the start of the level than the radius.
    """
    assert level.scores is not None
    radius, (height, width) = level.scores.shape[1] // 2, level.scores.shape[-2:]
    full_height, full_width = truth.shape[-2:]
    rows = _points(height, full_height, truth.device)[:, None, :, None]
    columns = _points(width, full_width, truth.device)[None, :, None]
    x, y = truth[:, :, rows, columns].flatten(2, 3).unbind(1)  # (B, 4, H, W)
    motion = torch.stack([x * (width / full_width), y * (height / full_height)], 1)
    rest = motion if level.start is None else motion - level.start[:, :, None]
    answerable = valid[:, rows, columns].flatten(1, 2) & (rest.abs() <= radius).all(1)
    speed = torch.linalg.vector_norm(motion, dim=1).clamp(max=_FASTEST)
    count = torch.where(answerable, _STILL + speed, 0)
    return torch.where(answerable[:, None], rest, 0), count


@lru_cache(maxsize=64)  # two per level and frame size
def _points(cells: int, pixels: int, device: torch.device) -> Tensor:
    """(2, cells): the pixels nearest to a quarter of a cell before and after each cell centre.

    Corners are aligned, as in every resize of this network. The nearest pixel is used instead of a
    mean, because the mean of two motions is a motion that nothing has.
    """
    spacing = (pixels - 1) / max(cells - 1, 1)
    center = torch.arange(cells, dtype=torch.float64, device=device) * spacing
    points = torch.stack([center - spacing / 4, center + spacing / 4])
    return points.round().long().clamp(0, pixels - 1)
