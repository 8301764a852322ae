"""The training losses: end-point errors as in DICL-Flow, PWC-Net or VCN, and cross-entropies."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import LevelConfig, LossConfig, TrainConfig
from ..data import FlowBatch
from ..models import LevelFlow
from ..ops import at_least_float32, length, resize_by_matrices, upsample_flow, warp
from .photometric import has_photometric_loss, photometric_loss

_UNIT = 20  # input pixels: the unit of motion in PWC-Net
_SMOOTH = 0.01  # px, added to an error before a power below 1 is taken, so that the slope is finite
_SAME_COLOR = 0.3  # largest distance between RGB colours in [0, 1] that count as equal
# weight of the cross-entropy without motion; motion in cells above which it no longer grows
_STILL, _FASTEST = 0.25, 2.0


def training_loss(
    levels: Sequence[LevelFlow],
    batch: FlowBatch,
    config: TrainConfig,
    average: Callable[[Tensor], Tensor],
    matching_weight: Tensor | float = 0.0,
    start: Tensor | None = None,
    *,
    accelerated: bool = False,
) -> Tensor:
    """Return the loss of `config`, plus that of the out-of-range heads where there are any.

    An `UnlabelledBatch` has the photometric loss in addition, if its weights are not 0.

    `average` is the mean of a number over the processes that share a batch; `matching_weight` is
    the current factor of the cross-entropy of the scores; `start` is the (B, 2, H, W) flow that
    the first level started from, if any. `accelerated` uses kernels where there are some.
    """
    flows = (levels, batch.flow, batch.valid)
    num_valid = average(batch.valid.sum()).clamp(min=1)
    if config.loss.kind == "averaged":
        reach = config.model.reach
        loss = pyramid_loss(*flows, reach, config.loss, num_valid, start, accelerated=accelerated)
    elif config.loss.kind == "multi-scale":
        loss = multi_scale_loss(*flows, config.loss)
    else:
        loss = summed_loss(*flows, config.loss, num_valid)
    if levels[0].out_of_range is not None:
        loss = loss + out_of_range_loss(levels, batch, config.model.levels, average)
    if any(config.loss.matching):
        weights = config.loss.matching
        entropy = matching_loss(levels, batch, weights, average, accelerated=accelerated)
        loss = loss + matching_weight * entropy
    if has_photometric_loss(config.loss, batch):
        loss = loss + photometric_loss(levels, batch, config.loss)
    return loss


def pyramid_loss(
    levels: Sequence[LevelFlow],
    truth: Tensor,
    valid: Tensor,
    reach: Sequence[int],
    config: LossConfig,
    num_valid: Tensor | None = None,
    start: Tensor | None = None,
    *,
    accelerated: bool = False,
) -> Tensor:
    """The loss of the paper: weighted mean of the end-point errors of all levels at full size.

    `truth` is (B, 2, H, W) in pixels, `valid` (B, H, W). Motion beyond the reach of a level,
    relative to `start`, has zero error there but counts in the mean; invalid pixels do not count.
    `num_valid` replaces their number in this batch if several processes share a mean.
    """
    if accelerated:
        from ..accelerated.losses import error_sum as add_errors
    else:
        add_errors = error_sum
    count = (valid.sum() if num_valid is None else num_valid).clamp(min=1)
    rest = truth if start is None else truth - start
    maps, power = (truth, rest, valid), (config.exponent, _SMOOTH)
    terms = [
        add_errors(flow, maps, reach[index], weight, power)
        for weight, flow, index in _weighted_flows(levels, config)
    ]
    return (torch.stack(terms) / count).mean()


def error_sum(
    flow: Tensor,
    maps: tuple[Tensor, Tensor, Tensor],
    reach: float,
    weight: float,
    power: tuple[float, float],
) -> Tensor:
    """`weight` times the sum of (error + smooth)**exponent; of the error if the exponent is 1.

    `maps` are truth, rest and valid: pixels count where they are valid and neither axis of the rest
    exceeds `reach`. `power` is exponent and smooth.
    """
    (truth, rest, valid), (exponent, smooth) = maps, power
    error = end_point_error(flow, truth)
    if exponent < 1:
        error = (error + smooth) ** exponent
    answerable = valid & (rest.abs() <= reach).all(1)
    return weight * (error * answerable).sum()


def multi_scale_loss(
    levels: Sequence[LevelFlow], truth: Tensor, valid: Tensor, config: LossConfig
) -> Tensor:
    """The loss of PWC-Net: at the size of each level, sum over its pixels, mean over pairs.

    The truth of a cell is the mean of its valid pixels; a cell without any does not count.
    """
    terms = []
    for weight, flow, _ in _weighted_flows(levels, config):
        stride = truth.shape[-1] // flow.shape[-1]
        share = F.avg_pool2d(valid[:, None].to(truth.dtype), stride)  # (B, 1, h, w)
        cells = F.avg_pool2d(truth * valid[:, None], stride) / share.clamp(min=1 / stride**2)
        error = length(flow * stride - cells) / _UNIT
        terms.append(weight * (error * (share[:, 0] > 0)).sum() / len(truth))
    return torch.stack(terms).sum()


def summed_loss(
    levels: Sequence[LevelFlow], truth: Tensor, valid: Tensor, config: LossConfig, num_valid: Tensor
) -> Tensor:
    """The loss of VCN: weighted sum of the mean end-point errors of all levels at full size."""
    terms = []
    for weight, flow, _ in _weighted_flows(levels, config):
        error = end_point_error(flow, truth, _enlarge_pixels)
        terms.append(weight * (error * valid).sum() / num_valid)
    return torch.stack(terms).sum()


def out_of_range_loss(
    levels: Sequence[LevelFlow],
    batch: FlowBatch,
    configs: Sequence[LevelConfig],
    average: Callable[[Tensor], Tensor],
) -> Tensor:
    """Cross-entropy of the out-of-range logits of all levels, with equal weight of both classes.

    A pixel is out of range if its motion differs from the flow of the coarser level by more than
    the radius on either axis, or if its colour differs where the truth leads: it is occluded.
    """
    truth, valid = batch.flow, batch.valid
    size = (truth.shape[-2], truth.shape[-1])
    num_valid = average(valid.sum()).clamp(min=1)
    color_change = length(warp(batch.image2, truth) - batch.image1)
    loss, rest = truth.new_zeros(()), truth
    for level, config in zip(levels, configs, strict=True):
        assert level.out_of_range is not None
        limit = config.radius * config.stride
        outside = ((rest.abs() > limit).any(1) | (color_change > _SAME_COLOR)).to(truth.dtype)
        share = average((outside * valid).sum()) / num_valid
        weights = valid * torch.where(outside > 0, 1 - share, share)
        logits = resize_by_matrices(level.out_of_range, size, corners=False)[:, 0]
        entropy = F.binary_cross_entropy_with_logits(logits, outside, weights, reduction="sum")
        loss = loss + entropy / num_valid
        rest = truth - _enlarge_pixels(level.refined.detach(), size)
    return loss


def end_point_error(
    flow: Tensor, truth: Tensor, upsample: Callable[[Tensor, tuple[int, int]], Tensor] | None = None
) -> Tensor:
    """(B, H, W) end-point error in pixels of a level, enlarged to the size of the truth."""
    size = (truth.shape[-2], truth.shape[-1])
    full = upsample(flow, size) if upsample else upsample_flow(flow, size, resize_by_matrices)
    return length(full - truth)


def _enlarge_pixels(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """Enlarge a flow to `size`; pixels are areas, as in VCN."""
    return upsample_flow(flow, size, partial(resize_by_matrices, corners=False))


def _weighted_flows(
    levels: Sequence[LevelFlow], config: LossConfig
) -> Iterator[tuple[float, Tensor, int]]:
    """Yield weight, flow and index of the level for every flow that is trained."""
    for kind, weights in (("matched", config.matched), ("refined", config.refined)):
        for index, (weight, level) in enumerate(zip(weights, levels, strict=bool(weights))):
            yield weight, getattr(level, kind), index


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

    Trained by its end-point error alone, a soft-argmax first learns zero displacement where motion
    is a fraction of a cell; then it is saturated and has no gradient. The cross-entropy always has
    one: it trains a level to match before its flow is useful.
    """
    loss = batch.flow.new_zeros(())
    for weight, level in zip(weights, levels, strict=True):
        if not weight:
            continue
        if accelerated:
            from ..accelerated.losses import entropy_sum

            assert level.scores is not None
            rest, count = _targets(level, batch.flow, batch.valid)
            total = entropy_sum(level.scores, rest, count)
        else:
            entropy, count = score_entropy(level, batch.flow, batch.valid)
            total = (entropy * count).sum()
        loss = loss + weight * total / average(count.sum()).clamp(min=1e-6)
    return loss


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

    Moving points weigh more. Both are 0 where the truth is invalid or beyond the radius.
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
    speed = length(motion).clamp(max=_FASTEST)
    count = torch.where(answerable, _STILL + speed, 0)
    return torch.where(answerable[:, None], rest, 0), count


@lru_cache(maxsize=64)  # two per level and frame size
def _points(cells: int, pixels: int, device: torch.device) -> Tensor:
    """(2, cells): the pixels nearest to a quarter of a cell before and after each cell centre.

    Corners are aligned. Not a mean, because the mean of two motions is one that nothing has.
    """
    spacing = (pixels - 1) / max(cells - 1, 1)
    center = torch.arange(cells, dtype=torch.float64, device=device) * spacing
    points = torch.stack([center - spacing / 4, center + spacing / 4])
    return points.round().long().clamp(0, pixels - 1)
