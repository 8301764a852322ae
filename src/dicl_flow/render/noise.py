"""Smooth random fields."""

import torch.nn.functional as F
from torch import Tensor

from .dice import Dice


def smooth_noise(
    dice: Dice, count: int, size: tuple[int, int], cells: int, channels: int = 1
) -> Tensor:
    """(N, C, H, W) of variance about 1, with `cells` independent values along the longer side."""
    longest = max(size)
    low = [max(2, round(cells * side / longest)) + 1 for side in size]
    return F.interpolate(
        dice.normal(count, channels, *low), size, mode="bicubic", align_corners=True
    )


def octaves(dice: Dice, count: int, size: tuple[int, int], cells: int, channels: int = 1) -> Tensor:
    """(N, C, H, W): sum of smooth noise from `cells` to about two pixels, finer detail weaker."""
    field = smooth_noise(dice, count, size, cells, channels)
    height = 1.0
    while cells * 4 < max(size):
        cells, height = cells * 2, height * 0.6
        field = field + height * smooth_noise(dice, count, size, cells, channels)
    return field
