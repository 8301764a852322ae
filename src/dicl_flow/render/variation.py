"""Augmentation of rendered pairs on the device: colours, erased rectangles, flips."""

import math

import torch
from torch import Tensor

from ..config import AugmentConfig
from ..data import FlowBatch
from ..data.augmentation import LUMA
from .camera import recolor
from .dice import Dice


def augment_batch(batch: FlowBatch, config: AugmentConfig, dice: Dice) -> FlowBatch:
    """Augment every pair of a batch, without a change of scale: rendered scenes vary in scale."""
    image1, image2 = _change_colors(batch.image1, batch.image2, config, dice)
    varied = FlowBatch(image1, _erase(image2, config, dice), batch.flow, batch.valid)
    return _flip(varied, (config.horizontal_flip, config.vertical_flip), dice)


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
    return recolor(image, (1 + brightness) * matrix, offset.flatten())


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


def _flip(batch: FlowBatch, shares: tuple[float, float], dice: Dice) -> FlowBatch:
    """Mirror some of the pairs from left to right, some from top to bottom: one copy of each."""
    number, _, height, width = batch.flow.shape
    chosen = torch.stack([dice.happens(number, share=share) for share in shares], 1)  # (B, 2)
    places = [torch.arange(side, device=chosen.device) for side in (width, height)]
    x, y = (
        torch.where(mirror[:, None] > 0, place.flip(0), place)
        for mirror, place in zip(chosen.unbind(1), places, strict=True)
    )
    source = (y[:, :, None] * width + x[:, None]).flatten(1)[:, None]  # (B, 1, HW)

    def mirrored(values: Tensor) -> Tensor:
        where = source.expand(-1, values.shape[1], -1)
        return values.flatten(2).gather(2, where).view(values.shape)

    flow = mirrored(batch.flow).mul_(1 - 2 * chosen[..., None, None])
    valid = mirrored(batch.valid[:, None])[:, 0]
    return FlowBatch(mirrored(batch.image1), mirrored(batch.image2), flow, valid)
