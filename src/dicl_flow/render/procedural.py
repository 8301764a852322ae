"""Procedural textures: noise, repeated patterns, and areas with little or no texture."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .dice import Dice
from .noise import octaves, smooth_noise

Size = tuple[int, int]


def procedural_textures(dice: Dice, count: int, size: Size) -> Tensor:
    """(N, 3, H, W) in [0, 1], all kinds in turn, in random colours."""
    share = math.ceil(count / len(_KINDS))
    patterns = torch.stack([kind(dice, share, size) for kind in _KINDS], 1)
    pattern = patterns.flatten(0, 1)[:count]  # (N, 1, H, W) about [0, 1]
    colors = dice.uniform(2, count, 3, 1, 1)
    low, high = torch.lerp(colors, colors.mean(2, keepdim=True), 0.6 * dice.uniform(count, 1, 1, 1))
    shade = 0.06 * smooth_noise(dice, count, size, 3) + 0.02 * octaves(dice, count, size, 24)
    return (torch.lerp(low, high, pattern) + shade).clamp_(0, 1)


def _clouds(dice: Dice, count: int, size: Size) -> Tensor:
    return (octaves(dice, count, size, 6) / 3 + 0.5).clamp(0, 1)


def _grain(dice: Dice, count: int, size: Size) -> Tensor:
    return (octaves(dice, count, size, 48) / 3 + 0.5).clamp(0, 1)


def _marble(dice: Dice, count: int, size: Size) -> Tensor:
    x, _ = _turned(dice, count, size)
    swirl = dice.uniform(count, 1, 1, 1, low=1, high=4) * octaves(dice, count, size, 5)
    return ((x / 30 + swirl).sin() + 1) / 2


def _stripes(dice: Dice, count: int, size: Size) -> Tensor:
    return _wave(dice, count, _turned(dice, count, size)[0])


def _checkers(dice: Dice, count: int, size: Size) -> Tensor:
    x, y = _turned(dice, count, size)
    period = dice.log_uniform(count, 1, 1, 1, low=12, high=90)
    wave = (2 * math.pi * x / period).sin() * (2 * math.pi * y / period).sin()
    return _edge(wave * period / 8)


def _dots(dice: Dice, count: int, size: Size) -> Tensor:
    x, y = _turned(dice, count, size)
    period = dice.log_uniform(count, 1, 1, 1, low=10, high=60)
    distance = torch.hypot((x / period).frac() - 0.5, (y / period).frac() - 0.5)
    return _edge((dice.uniform(count, 1, 1, 1, low=0.15, high=0.4) - distance) * period)


def _tiles(dice: Dice, count: int, size: Size) -> Tensor:
    """One small tile of noise, repeated."""
    tile = octaves(dice, count, (32, 32), 4) / 3 + 0.5
    piece = F.interpolate(tile, scale_factor=1.5, mode="bicubic")
    repeats = [math.ceil(side / 48) for side in size]
    return piece.repeat(1, 1, *repeats)[..., : size[0], : size[1]].clamp(0, 1)


def _gradients(dice: Dice, count: int, size: Size) -> Tensor:
    x, _ = _turned(dice, count, size)
    return (x / max(size) + 0.25).clamp(0, 1)


def _flat(dice: Dice, count: int, size: Size) -> Tensor:
    return dice.uniform(count, 1, 1, 1).expand(-1, -1, *size)


def _turned(dice: Dice, count: int, size: Size) -> tuple[Tensor, Tensor]:
    """(N, 1, H, W) coordinates x and y in pixels, positive, with randomly rotated axes."""
    y = torch.arange(size[0], device=dice.device, dtype=torch.float32)[:, None]
    x = torch.arange(size[1], device=dice.device, dtype=torch.float32)
    direction = dice.directions(count, 1, 1, 1)
    cos, sin = direction.unbind(-1)
    return 2048 + cos * x + sin * y, 2048 + cos * y - sin * x


def _wave(dice: Dice, count: int, x: Tensor) -> Tensor:
    """Stripes of random width, with soft to hard edges."""
    period = dice.log_uniform(count, 1, 1, 1, low=6, high=80)
    hardness = dice.uniform(count, 1, 1, 1, low=0.3, high=1) * period / 4
    return _edge((2 * math.pi * x / period).sin() * hardness)


def _edge(distance: Tensor) -> Tensor:
    """1 inside, 0 outside, with an edge of about two pixels."""
    return (distance / 2 + 0.5).clamp(0, 1)


_KINDS = (_clouds, _flat, _stripes, _grain, _tiles, _gradients, _checkers, _marble, _dots)
