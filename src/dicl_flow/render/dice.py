"""The random draws of the renderer, without synchronisation, and smooth random fields."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_QUANTILES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
# CPU generators use 32 bits of a seed; the factor keeps the steps of different seeds apart
_SEED_FACTOR, _SEED_BITS = 2_654_435_761, 0xFFFF_FFFF


class Dice:
    """Random draws that depend on a seed and a step only (on one kind of device)."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.generator = torch.Generator(device)
        self.restart(seed, 0)

    def restart(self, seed: int, step: int) -> None:
        """Start the draws of a step."""
        self.generator.manual_seed((seed * _SEED_FACTOR + step) & _SEED_BITS)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform in [low, high)."""
        return torch.empty(shape, device=self.device).uniform_(low, high, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        """Mean 0, variance 1."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def log_uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """Log-uniform in [low, high)."""
        return self.uniform(*shape, low=math.log(low), high=math.log(high)).exp()

    def mostly_small(self, *shape: int, extent: float) -> Tensor:
        """In [-extent, extent], half of the draws within an eighth of it."""
        return extent * self.uniform(*shape, low=-1.0) ** 3

    def happens(self, *shape: int, share: float) -> Tensor:
        """1.0 with the probability `share`, else 0.0."""
        return (self.uniform(*shape) < share).float()

    def integers(self, *shape: int, high: int) -> Tensor:
        """Integers in [0, high)."""
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def directions(self, *shape: int) -> Tensor:
        """Unit vectors (..., 2), uniform in direction."""
        angle = self.uniform(*shape, high=2 * math.pi)
        return torch.stack([angle.cos(), angle.sin()], -1)

    def lengths(self, *shape: int, quantiles: Sequence[float]) -> Tensor:
        """Lengths with the given 50, 75, 90, 95, 99 and 100 % quantiles, linear in between."""
        draw = self.uniform(*shape)
        result = torch.zeros_like(draw)
        ends = (0.0, *quantiles)
        for step in range(len(quantiles)):
            start, end = _QUANTILES[step], _QUANTILES[step + 1]
            slope = (ends[step + 1] - ends[step]) / (end - start)
            result += (draw.clamp(start, end) - start) * slope
        return result


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
