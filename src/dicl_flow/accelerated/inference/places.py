"""Places where the first layer has fewer terms, and the terms that they share; see `edges`."""

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int, int]  # (B, H, W)


class Places(NamedTuple):
    """Pairs of a displacement and a pixel p, in order."""

    positions: Tensor
    """Where they are in (U, V, B, H, W)."""
    first: Tensor
    second: Tensor
    """Which terms they have."""
    bounds: list[int]
    """Where each displacement starts, and the end of the last."""
    pixels: Tensor
    """Where p is in (B, H, W), for each first term."""
    taps1: Tensor
    taps2: Tensor
    """(terms, 9): numbers of the features that the terms see, 0 for what is hidden."""


class Grid(NamedTuple):
    """What depends only on the size.

    Features are numbered: those of F1 with a margin of 1, then those of F2 with one of r+1.
    Feature 0 is zero.
    """

    windows1: Tensor
    windows2: Tensor
    """(B·H·W, 9) of all pixels p and (B·(H+2r)·(W+2r), 9) of all q = p+u."""
    inside1: Tensor
    inside2: Tensor
    """In the same shapes: which of them lie in the image."""

    def share(self, seen: Tensor, pixels: Tensor, wanted: Tensor, visible: Tensor) -> Places:
        """(U·V, N) pairs of q and p, some of them `wanted`; what is visible in the windows of q."""
        steps = torch.arange(len(seen), device=seen.device)[:, None]
        positions = (steps * len(self.windows1) + pixels)[wanted]
        seen, pixels = seen[wanted], pixels[wanted]
        of_first, taps1, first = _terms(self.windows1, pixels, _code(visible)[seen])
        _, taps2, second = _terms(self.windows2, seen, _code(self.inside1)[pixels])
        bounds = [0, *wanted.sum(1).cumsum(0).tolist()]
        return Places(positions, first, second, bounds, of_first, taps1, taps2)


def windows(maps: Tensor) -> Tensor:
    """(B, H+2, W+2) -> (B·H·W, 9)."""
    return maps.unfold(1, 3, 1).unfold(2, 3, 1).reshape(-1, 9)


@lru_cache(maxsize=20)  # five levels of the last four sizes, as with CUDA graphs
@torch.inference_mode(mode=False)
def find_border(size: Size, radius: int, device: torch.device) -> tuple[Grid, Places]:
    """Return the grid and the places at the border of either image; needed once for a video."""
    batch, height, width = size
    tall, wide = height + 2 * radius, width + 2 * radius
    numbers1 = _numbers((batch, height + 2, width + 2), device)
    numbers2 = _numbers((batch, tall + 2, wide + 2), device) + numbers1.numel()
    image = torch.ones(size, dtype=torch.bool, device=device)
    inside1, inside2 = (windows(F.pad(image, [margin] * 4)) for margin in (1, radius + 1))
    grid = Grid(windows(numbers1), windows(numbers2), inside1, inside2)
    seen = _numbers((batch, tall, wide), device).unfold(1, height, 1).unfold(2, width, 1)
    seen = seen.permute(2, 1, 0, 3, 4).reshape(-1, len(inside1))  # (U·V, B·H·W)
    wanted = ~(inside1.all(1) & inside2.all(1)[seen])
    pixels = torch.arange(len(inside1), device=device).expand_as(seen)
    return grid, grid.share(seen, pixels, wanted, inside2)


def find_holes(visible: Tensor, size: Size, radius: int, grid: Grid) -> Places:
    """Return the places where `visible`, (B·(H+2r)·(W+2r), 9), lacks something of the image."""
    _, height, width = size
    tall, wide, side = height + 2 * radius, width + 2 * radius, 2 * radius + 1
    seen = (visible != grid.inside2).any(1).nonzero().squeeze(1)
    steps = torch.arange(side * side, device=seen.device)[:, None]
    y, x = seen // wide % tall - steps % side, seen % wide - steps // side  # of p: (U·V, N)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixels = (seen // (tall * wide) * height + y) * width + x
    return grid.share(seen.expand_as(pixels), pixels, inside, visible)


def _terms(windows: Tensor, where: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) windows and codes of what is seen -> the distinct ones, their taps, numbers of each."""
    keys, numbers = torch.unique((where << 9) + codes, return_inverse=True)
    where = keys >> 9
    return where, windows[where] * ((keys[:, None] & _bits(keys)) > 0), numbers


def _code(seen: Tensor) -> Tensor:
    """(N, 9) -> (N,): a bit for each."""
    return (seen * _bits(seen)).sum(1)


def _bits(like: Tensor) -> Tensor:
    return 1 << torch.arange(9, device=like.device)


def _numbers(size: Size, device: torch.device) -> Tensor:
    batch, height, width = size
    return torch.arange(batch * height * width, device=device).view(size)
