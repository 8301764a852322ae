"""Steps that train the second pass of quality "best"."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from ..config import BEST, TrainConfig
from ..models import FlowNetwork, InitialFlow
from ..ops import Size, resize_flow_pixels, resize_pixels, size_in_multiples, size_of

_SCALE = BEST.scales[1] / BEST.scales[0]  # frames of the second pass relative to those of the first


def is_second_pass(config: TrainConfig, step: int) -> bool:
    """Whether a step trains the second pass; depends on its number only, so that runs can resume.

    Whole rounds through the frame sizes are of one kind, so that each kind sees all sizes.
    """
    every, sizes = config.second_pass.every, max(len(config.render.sizes), 1)
    return every > 0 and step // sizes % every == every - 1


def second_pass_config(config: TrainConfig) -> TrainConfig:
    """Return the settings for the levels that run in a second pass."""
    skipped = sum(stride > BEST.start for stride in config.model.strides)
    kinds = ("refined", "matched", "matching")
    weights = {kind: getattr(config.loss, kind)[skipped:] for kind in kinds}
    model = replace(config.model, levels=config.model.levels[skipped:])
    return replace(config, model=model, loss=replace(config.loss, **weights))


@torch.no_grad()
def first_pass(
    model: FlowNetwork,
    image1: Tensor,
    image2: Tensor,
    arithmetic: Callable[[], AbstractContextManager[object]],
) -> InitialFlow:
    """Return the flow of the first pass, at half the size, from which the second pass starts.

    As in estimation, batch norm uses its running statistics and leaves them unchanged. The model
    stays in evaluation mode. Images are (B, 3, H, W) in [-1, 1].
    """
    size = size_of(image1)
    seen = size_in_multiples(_halved(size), model.config.pad_multiple)
    model.eval()
    with arithmetic():
        levels = model(resize_pixels(image1, seen), resize_pixels(image2, seen))
    flow = model.upsample(levels[-1].refined, seen)
    return InitialFlow(resize_flow_pixels(flow, size), BEST.start)


def enlarged(image: Tensor) -> Tensor:
    """Scale (B, 3, H, W) down and up again: what the second pass sees of small frames."""
    size = size_of(image)
    return resize_pixels(resize_pixels(image, _halved(size)), size, "bicubic").clamp(-1, 1)


def _halved(size: Size) -> Size:
    height, width = (max(round(side / _SCALE), 1) for side in size)
    return height, width
