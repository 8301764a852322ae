"""Steps that train the second pass of two, as quality "best" uses it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from ..config import BEST, TrainConfig
from ..estimation.feeding import Size, size_of
from ..models import FlowNetwork, InitialFlow
from ..ops import resize_flow_pixels, resize_pixels, size_in_multiples

_SCALE = BEST.scales[1] / BEST.scales[0]  # of what the second pass sees, to what the first does


def is_second_pass(config: TrainConfig, step: int) -> bool:
    """Whether a step trains the second pass: a matter of its number alone, so of a resumed run too.

    Sizes of frames go by turns. Whole rounds are of one kind, so that each kind has all sizes.
    """
    every, sizes = config.second_pass.every, max(len(config.render.sizes), 1)
    return every > 0 and step // sizes % every == every - 1


def second_pass_config(config: TrainConfig) -> TrainConfig:
    """The same training, of the levels alone that run in a second pass."""
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
    """What the first pass finds in frames of half the size, for a second one to begin from.

    As when it is used: batch norms have their running statistics, and do not change them.
    Leaves the model like that, in evaluation mode. Images are (B, 3, H, W) in [-1, 1].
    """
    size = size_of(image1)
    seen = size_in_multiples(_halved(size), model.config.pad_multiple)
    model.eval()
    with arithmetic():
        levels = model(resize_pixels(image1, seen), resize_pixels(image2, seen))
    flow = model.upsample(levels[-1].refined, seen)
    return InitialFlow(resize_flow_pixels(flow, size), BEST.start)


def enlarged(image: Tensor) -> Tensor:
    """What the second pass sees of a frame of half the size; (B, 3, H, W) in [-1, 1]."""
    size = size_of(image)
    return resize_pixels(resize_pixels(image, _halved(size)), size, "bicubic").clamp(-1, 1)


def _halved(size: Size) -> Size:
    height, width = (max(round(side / _SCALE), 1) for side in size)
    return height, width
