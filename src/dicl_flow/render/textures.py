"""The textures of layers: photographs and procedural textures in one tensor."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..files import Array, read_image, to_uint8
from .dice import Dice
from .photos import list_photos
from .procedural import procedural_textures
from .solid.shading import MipAtlas

TEXTURE_SIZE = (384, 512)
_NUM_PROCEDURAL = 54
_MIP_LEVELS = 6


class TextureAtlas:
    """P textures of one size on the device; the first `num_photos` are photographs."""

    def __init__(self, photos: Tensor, procedural: Tensor) -> None:
        """Take two stacks (N, 3, H, W) with values in [0, 1] or uint8; one may be empty."""
        self.num_photos = len(photos)
        stack = torch.cat([_as_float(photos), _as_float(procedural)])
        # (1, 3, P, H, W), in memory (P, H, W, 3): the colours of a pixel are adjacent
        self.images = stack.permute(0, 2, 3, 1).contiguous().permute(3, 0, 1, 2)[None]

    def __len__(self) -> int:
        return self.images.shape[2]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a texture."""
        return self.images.shape[3], self.images.shape[4]

    @cached_property
    def mips(self) -> MipAtlas:
        """The textures at several resolutions, for solid scenes. Computed on first use."""
        height, width = self.size
        levels = min(_MIP_LEVELS, min(height, width).bit_length() - 1)
        parts = []
        for level in range(levels):
            shrunk = [
                F.avg_pool2d(self.images[0, :, number], 1 << level) for number in range(len(self))
            ]  # (3, h, w) each
            stack = torch.stack(shrunk).permute(0, 2, 3, 1)  # (P, h, w, 3)
            parts.append((stack * 255).round_().clamp_(0, 255).to(torch.uint8).flatten())
        return MipAtlas(torch.cat(parts), self.size, len(self), levels)


def load_textures(
    photos: str | Path | Sequence[Path] | None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    limit: int | None = None,
    size: tuple[int, int] = TEXTURE_SIZE,
) -> TextureAtlas:
    """Load photographs, from a folder or a list, and procedural textures; None: only the latter.

    `limit` is the largest number of photographs, taken evenly from the folder.
    """
    paths = list_photos(Path(photos)) if isinstance(photos, str | Path) else photos or []
    if limit is not None and limit < len(paths):
        paths = [paths[index * len(paths) // limit] for index in range(limit)]
    stack = _read_photos(paths, size).to(device)
    dice = Dice(torch.device(device), seed)
    return TextureAtlas(stack, procedural_textures(dice, _NUM_PROCEDURAL, size))


def _read_photos(paths: Sequence[Path], size: tuple[int, int]) -> Tensor:
    """(N, 3, H, W) uint8."""
    with ThreadPoolExecutor() as pool:
        photos = list(pool.map(lambda path: _fill(to_uint8(read_image(path)), size), paths))
    stack = np.stack(photos) if photos else np.empty((0, *size, 3), np.uint8)
    return torch.from_numpy(stack).permute(0, 3, 1, 2)


def _fill(photo: Array, size: tuple[int, int]) -> Array:
    """Scale a photo to fill `size` and crop the rest, half at each end."""
    sides = list(zip(size, photo.shape[:2], strict=True))
    scale = max(side / length for side, length in sides)
    height, width = (max(side, round(length * scale)) for side, length in sides)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    resized = cv2.resize(photo, (width, height), interpolation=method)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return resized[top : top + size[0], left : left + size[1]]


def _as_float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images
