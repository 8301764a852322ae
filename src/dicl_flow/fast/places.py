"""Lists of the places where the first layer is not the plain sum: see `edges`."""

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int, int]  # (B, H, W)


class Places(NamedTuple):
    """Pairs of a displacement and a pixel p, in order."""

    positions: Tensor
    """In (U, V, B, H, W)."""
    first: Tensor
    """Where p is in (B, H, W); in `Border`: which of the first terms."""
    second: Tensor
    """Where q = p+u is in (B, H+2r, W+2r); in `Border`: which of the second terms."""
    bounds: list[int]
    """Where each displacement begins, and the end of the last."""

    def of(self, chunk: range) -> tuple[Tensor, Tensor, Tensor]:
        """Positions, first and second of some displacements."""
        found = slice(self.bounds[chunk.start], self.bounds[chunk.stop])
        return self.positions[found], self.first[found], self.second[found]


class Border(NamedTuple):
    """Places near the border of either image, and the terms of the first layer that they share.

    Windows are numbers of features: those of F1 with a margin of 1, then those of F2 with a
    margin of r+1. The very first is zero.
    """

    places: Places
    pixels: Tensor
    """Where p is in (B, H, W), for each of the first terms."""
    taps1: Tensor
    taps2: Tensor
    """(terms, 9): the windows of the terms, 0 where the other image ends."""
    windows1: Tensor
    windows2: Tensor
    """(B·H·W, 9), (B·(H+2r)·(W+2r), 9): the windows of all pixels."""
    inside1: Tensor
    inside2: Tensor
    """Of the same shapes: what lies in the image."""


def windows(maps: Tensor) -> Tensor:
    """(B, H+2, W+2) -> (B·H·W, 9)."""
    return maps.unfold(1, 3, 1).unfold(2, 3, 1).reshape(-1, 9)


@lru_cache(maxsize=32)  # five levels of a few sizes
@torch.inference_mode(mode=False)
def find_border(size: Size, radius: int, device: torch.device) -> Border:
    """Depends on the size only, so that a video needs it once."""
    batch, height, width = size
    maps = [(batch, height + 2 * margin, width + 2 * margin) for margin in (1, radius + 1)]
    numbers1, numbers2, seen = (
        _numbers(shape, device) for shape in (*maps, (batch, maps[1][1] - 2, maps[1][2] - 2))
    )
    windows1, windows2 = windows(numbers1), windows(numbers2) + numbers1.numel()
    image = torch.ones(size, dtype=torch.bool, device=device)
    inside1, inside2 = (windows(F.pad(image, [margin] * 4)) for margin in (1, radius + 1))
    seen = seen.unfold(1, height, 1).unfold(2, width, 1).permute(2, 1, 0, 3, 4)
    seen = seen.reshape(-1, len(windows1))  # (U·V, B·H·W)
    wanted = ~(inside1.all(1) & inside2.all(1)[seen])
    positions, seen = wanted.flatten().nonzero().squeeze(1), seen[wanted]
    pixels = positions % len(windows1)
    pixels_of_terms, taps1, first = _terms(pixels, windows1, inside2[seen])
    _, taps2, second = _terms(seen, windows2, inside1[pixels])
    places = Places(positions, first, second, _bounds(wanted))
    return Border(places, pixels_of_terms, taps1, taps2, windows1, windows2, inside1, inside2)


def _terms(where: Tensor, windows: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Places (N,) that see (N, 9) -> the different terms: where, taps; and which each has."""
    bits = 1 << torch.arange(9, device=where.device)
    keys, numbers = torch.unique((where << 9) + (seen * bits).sum(1), return_inverse=True)
    where = keys >> 9
    return where, windows[where] * ((keys[:, None] & bits) > 0), numbers


def find_places(wanted: Tensor, size: Size, radius: int) -> Places:
    """Return the places whose q is `wanted`, (B·(H+2r)·(W+2r))."""
    batch, height, width = size
    tall, wide, side = height + 2 * radius, width + 2 * radius, 2 * radius + 1
    seen = wanted.nonzero().squeeze(1)
    displacements = torch.arange(side * side, device=wanted.device)[:, None]
    y, x = seen // wide % tall - displacements % side, seen % wide - displacements // side
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)  # (U·V, N)
    pixels = (seen // (tall * wide) * height + y) * width + x
    positions = displacements * (batch * height * width) + pixels
    seen = seen.expand_as(inside)
    return Places(positions[inside], pixels[inside], seen[inside], _bounds(inside))


def _bounds(wanted: Tensor) -> list[int]:
    return [0, *wanted.sum(1).cumsum(0).tolist()]


def _numbers(size: Size, device: torch.device) -> Tensor:
    batch, height, width = size
    return torch.arange(batch * height * width, device=device).view(size)
