"""Augmentation of rendered pairs on the device: colours, erased rectangles, flips."""

import math

import torch
from torch import Tensor

from ..config import AugmentConfig
from ..data import FlowBatch
from ..data.augment_color import LUMA
from .colors import mix_colors
from .dice import Dice


def augment_batch(batch: FlowBatch, config: AugmentConfig, dice: Dice) -> FlowBatch:
    """Augment every pair of a batch, without a change of scale: rendered scenes vary in scale."""
    image1, image2 = _change_colors(batch.image1, batch.image2, config, dice)
    flipped = FlowBatch(image1, _erase(image2, config, dice), batch.flow, batch.valid)
    for axis, share in ((0, config.horizontal_flip), (1, config.vertical_flip)):
        flipped = _flip(flipped, axis, dice.happens(len(batch.flow), share=share).bool())
    return flipped


def _change_colors(
    image1: Tensor, image2: Tensor, config: AugmentConfig, dice: Dice
) -> tuple[Tensor, Tensor]:
    """Change brightness, contrast, saturation and hue; in some pairs, each frame separately."""
    batch = len(image1)
    draws = dice.uniform(2, 4, batch, low=-1.0)
    apart = dice.happens(batch, share=config.asymmetric_color)
    draws[1] = torch.lerp(draws[0], draws[1], apart)
    draws = draws * dice.happens(batch, share=config.color)
    return _jitter(image1, draws[0], config), _jitter(image2, draws[1], config)


def _jitter(image: Tensor, draws: Tensor, config: AugmentConfig) -> Tensor:
    """Apply an affine change of colours to each (3, H, W); `draws` (4, B) are in [-1, 1]."""
    reach = (config.brightness, config.contrast, config.saturation, 2 * math.pi * config.hue)
    brightness, contrast, saturation, hue = (
        (extent * draw)[:, None, None] for extent, draw in zip(reach, draws, strict=True)
    )
    mean = image.mean((2, 3))[:, None]  # (B, 1, 3)
    gray = sum(weight * mean[..., i : i + 1] for i, weight in enumerate(LUMA))
    # contrast is about the mean grey of the frame
    matrix = (1 + contrast) * _saturate(saturation) @ _turn(hue)
    offset = (1 + brightness) * gray * -contrast
    return mix_colors(image, (1 + brightness) * matrix, offset.flatten()).clamp_(0, 1)


def _saturate(change: Tensor) -> Tensor:
    """(B, 1, 1) -> (B, 3, 3): moves colours away from grey."""
    identity = torch.eye(3, device=change.device)
    gray = torch.cat([torch.full_like(identity[:, :1], weight) for weight in LUMA], 1)
    return (1 + change) * identity - change * gray


def _turn(angle: Tensor) -> Tensor:
    """(B, 1, 1) radians -> (B, 3, 3): rotates colours about the grey axis."""
    identity = torch.eye(3, device=angle.device)
    across = (identity.roll(1, 0) - identity.roll(1, 1)) / math.sqrt(3)
    return angle.cos() * identity + (1 - angle.cos()) / 3 + angle.sin() * across


def _erase(image: Tensor, config: AugmentConfig, dice: Dice) -> Tensor:
    """Fill random rectangles of the frames with their mean colour."""
    batch, _, height, width = image.shape
    mean = image.mean((2, 3), keepdim=True)
    row = torch.arange(height, device=image.device)[:, None]
    column = torch.arange(width, device=image.device)
    chosen = dice.happens(batch, share=config.eraser)
    fewest, most = config.eraser_count
    count = chosen * (fewest + dice.integers(batch, high=most - fewest + 1))
    shortest, longest = config.eraser_size
    hidden = torch.zeros(batch, height, width, dtype=torch.bool, device=image.device)
    for number in range(most):
        top = dice.uniform(batch, 1, 1, high=height)
        left = dice.uniform(batch, 1, 1, high=width)
        sides = dice.uniform(2, batch, 1, 1, low=shortest, high=longest)
        inside = (row >= top) & (row < top + sides[0]) & (column >= left)
        inside &= column < left + sides[1]
        hidden |= inside & (number < count)[:, None, None]
    return torch.where(hidden[:, None], mean, image)


def _flip(batch: FlowBatch, axis: int, chosen: Tensor) -> FlowBatch:
    """Mirror the chosen pairs; `axis` 0 is x, 1 is y."""
    chosen = chosen[:, None, None]
    sign = torch.ones(2, 1, 1, device=chosen.device)
    sign[axis] = -1

    def mirrored(values: Tensor, which: Tensor) -> Tensor:
        return torch.where(which, values.flip(-1 - axis), values)

    flow = torch.where(chosen[:, None], batch.flow.flip(-1 - axis) * sign, batch.flow)
    image1, image2 = (mirrored(image, chosen[:, None]) for image in (batch.image1, batch.image2))
    return FlowBatch(image1, image2, flow, mirrored(batch.valid, chosen))
