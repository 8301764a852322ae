from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import LossConfig
from ..models import LevelFlow
from ..ops import resize_by_matrices, upsample_flow


def pyramid_loss(
    levels: Sequence[LevelFlow],
    truth: Tensor,
    valid: Tensor,
    reach: Sequence[int],
    config: LossConfig,
    num_valid: Tensor | None = None,
) -> Tensor:
    """The paper's loss: end-point error of every level's flow at full size, weighted, averaged.

    `truth` is (B, 2, H, W) in pixels, `valid` (B, H, W). A level answers only for motion
    within its reach: pixels beyond count as zero but stay in the mean; invalid pixels leave
    it. `num_valid` replaces the number of valid pixels of this batch where several
    processes share one mean.
    """
    count = (valid.sum() if num_valid is None else num_valid).clamp(min=1)
    terms = []
    for kind, weights in (("matched", config.matched), ("refined", config.refined)):
        for weight, level, limit in zip(weights, levels, reach, strict=bool(weights)):
            error = end_point_error(getattr(level, kind), truth)
            answerable = valid & (truth.abs() <= limit).all(1)
            terms.append(weight * (error * answerable).sum() / count)
    return torch.stack(terms).mean()


def end_point_error(flow: Tensor, truth: Tensor) -> Tensor:
    """(B, H, W) distance in pixels, after bringing a level's flow to the size of the truth."""
    size = (truth.shape[-2], truth.shape[-1])
    return torch.linalg.vector_norm(upsample_flow(flow, size, resize_by_matrices) - truth, dim=1)
