"""The textures of layers: photographs and procedural textures in one tensor."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..files import Array, read_image, to_uint8
from ..ops import Size
from .photos import list_photos
from .shapes import Dice, octaves, smooth_noise


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
    """Of random width, with soft to hard edges."""
    x, _ = _turned(dice, count, size)
    period = dice.log_uniform(count, 1, 1, 1, low=6, high=80)
    hardness = dice.uniform(count, 1, 1, 1, low=0.3, high=1) * period / 4
    return _edge((2 * math.pi * x / period).sin() * hardness)


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
    cos, sin = dice.directions(count, 1, 1, 1).unbind(-1)
    return 2048 + cos * x + sin * y, 2048 + cos * y - sin * x


def _edge(distance: Tensor) -> Tensor:
    """1 inside, 0 outside, with an edge of about two pixels."""
    return (distance / 2 + 0.5).clamp(0, 1)


_KINDS = (_clouds, _flat, _stripes, _grain, _tiles, _gradients, _checkers, _marble, _dots)


_NUM_PROCEDURAL = 54
_MIP_LEVELS = 6


@dataclass(frozen=True)
class MipAtlas:
    """Textures at several resolutions in one row of bytes."""

    texels: Tensor  # uint8: by level, texture, row, column and colour
    size: Size  # (height, width) at level 0
    num_textures: int
    num_levels: int

    @property
    def firsts(self) -> list[int]:
        """Index of the first texel of each level."""
        sides = [[side >> level for side in self.size] for level in range(self.num_levels - 1)]
        return [0, *accumulate(3 * self.num_textures * height * width for height, width in sides)]


class TextureAtlas:
    """P textures of one size on the device; the first `num_photos` are photographs."""

    def __init__(self, photos: Tensor, procedural: Tensor) -> None:
        """Take two stacks (N, 3, H, W) with values in [0, 1] or uint8; one may be empty."""
        self.num_photos = len(photos)
        stacks = (photos, procedural)
        stack = torch.cat([s.float() / 255 if s.dtype == torch.uint8 else s for s in stacks])
        # (1, 3, P, H, W), in memory (P, H, W, 3): the colours of a pixel are adjacent
        self.images = stack.permute(0, 2, 3, 1).contiguous().permute(3, 0, 1, 2)[None]

    def __len__(self) -> int:
        return self.images.shape[2]

    @property
    def size(self) -> Size:
        """(height, width) of a texture."""
        return self.images.shape[3], self.images.shape[4]

    @cached_property
    def mips(self) -> MipAtlas:
        """The textures at several resolutions, for solid scenes. Computed on first use."""
        height, width = self.size
        levels = min(_MIP_LEVELS, min(height, width).bit_length() - 1)
        parts = []
        for level in range(levels):
            shrunk = [F.avg_pool2d(image, 1 << level) for image in self.images[0].unbind(1)]
            stack = torch.stack(shrunk).permute(0, 2, 3, 1)  # (P, h, w, 3)
            parts.append((stack * 255).round_().clamp_(0, 255).to(torch.uint8).flatten())
        return MipAtlas(torch.cat(parts), self.size, len(self), levels)


def load_textures(
    photos: str | Path | Sequence[Path] | None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    limit: int | None = None,  # of photographs, taken evenly from the folder
    size: Size = (384, 512),
) -> TextureAtlas:
    """Load photographs, from a folder or a list, and procedural textures; None: only the latter."""
    paths = list_photos(Path(photos)) if isinstance(photos, str | Path) else photos or []
    if limit is not None and limit < len(paths):
        paths = [paths[index * len(paths) // limit] for index in range(limit)]
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(lambda path: _fill(to_uint8(read_image(path)), size), paths))
    stack = torch.from_numpy(np.stack(images) if images else np.empty((0, *size, 3), np.uint8))
    stack = stack.permute(0, 3, 1, 2).to(device)  # (N, 3, H, W)
    dice = Dice(torch.device(device), seed)
    return TextureAtlas(stack, procedural_textures(dice, _NUM_PROCEDURAL, size))


def _fill(photo: Array, size: Size) -> Array:
    """Scale a photo to fill `size` and crop the rest, half at each end."""
    sides = list(zip(size, photo.shape[:2], strict=True))
    scale = max(side / length for side, length in sides)
    height, width = (max(side, round(length * scale)) for side, length in sides)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    resized = cv2.resize(photo, (width, height), interpolation=method)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return resized[top : top + size[0], left : left + size[1]]
