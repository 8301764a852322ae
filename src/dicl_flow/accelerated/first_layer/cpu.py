"""Partial windows of the first layer on CPUs: few terms differ, and displacements share them."""

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import FactoredLayer

ROUND = 512  # rows of a product: oneDNN compiles a kernel for each new number of them
_AT_ONCE = 16 * ROUND
Size = tuple[int, int, int]  # (B, H, W)


class WindowTerms(NamedTuple):
    """Partial windows, each a pair of a displacement and a pixel p, in order; and their terms."""

    positions: Tensor  # where they are in (U, V, B, H, W)
    first: Tensor  # which terms they have
    second: Tensor
    bounds: list[int]  # where each displacement starts, and the end of the last
    pixels: Tensor  # where p is in (B, H, W), for each first term
    taps1: Tensor  # (terms, taps): numbers of the features that terms see, 0 for what is hidden
    taps2: Tensor


class Grid(NamedTuple):
    """What depends only on the size.

    Features are numbered: those of F1 with a margin of half a window, then those of F2 with a
    margin that is r wider. The very first is zero.
    """

    windows1: Tensor  # (B·H·W, taps) of all pixels p
    windows2: Tensor  # (B·(H+2r)·(W+2r), taps) of all q = p+u
    inside1: Tensor  # (B·H·W,), (B·(H+2r)·(W+2r),) `codes`: which of them lie in the image
    inside2: Tensor

    def share(self, seen: Tensor, pixels: Tensor, wanted: Tensor, visible: Tensor) -> WindowTerms:
        """(U·V, N) pairs of q and p, some of them `wanted`; `codes` of what is visible around q."""
        pairs = wanted.flatten().nonzero().squeeze(1)
        steps, seen, pixels = pairs // wanted.shape[1], seen.take(pairs), pixels.take(pairs)
        of_first, taps1, first = _terms(self.windows1, pixels, visible[seen])
        _, taps2, second = _terms(self.windows2, seen, self.inside1[pixels])
        bounds = [0, *wanted.sum(1).cumsum(0).tolist()]
        positions = steps * len(self.windows1) + pixels
        return WindowTerms(positions, first, second, bounds, of_first, taps1, taps2)


class PartialWindows:
    """Writes exact values where the sum of both terms is wrong."""

    def __init__(
        self, layer: FactoredLayer, features1: Tensor, features2: Tensor, minus_first: Tensor
    ) -> None:
        """Features (B, C, H, W); the layer's first term, negated: (B, channels, H, W)."""
        margin = layer.window // 2
        self._taps, self._bias = layer.taps_of_terms(), layer.bias
        self._minus_first = _rows(minus_first)
        rows = torch.cat([_rows(features1, margin), _rows(features2, layer.radius + margin)])
        kinds = find_partial(features2, layer.radius, layer.window)
        self._kinds = [(terms, *self._exact(terms, rows)) for terms in kinds]

    def correct(self, result: Tensor, chunk: range) -> None:
        """Overwrite the first layer minus A, (U·V·B, channels, H, W), of some displacements."""
        rows, start = _rows(result), chunk.start * len(self._minus_first)
        for terms, first, second in self._kinds:
            part = slice(terms.bounds[chunk.start], terms.bounds[chunk.stop])
            minus_first, rest = F.embedding(terms.first[part], first).chunk(2, 1)
            values = torch.maximum(F.embedding(terms.second[part], second), minus_first)
            rows[terms.positions[part] - start] = values.add_(rest).to(rows.dtype)

    def _exact(self, terms: WindowTerms, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the negated first terms, with what to add to subtract A, and the second terms."""
        first, second = (
            products(numbers, rows, taps.__rmatmul__)
            for numbers, taps in zip((terms.taps1, terms.taps2), self._taps, strict=True)
        )
        minus_first = first.add_(self._bias).neg_()
        rest = F.embedding(terms.pixels, self._minus_first) - minus_first
        return torch.cat([minus_first, rest], 1), second


def products(numbers: Tensor, rows: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """What a layer (N, window² · C) -> (N, channels) makes of windows: numbers of rows (N, C)."""
    padded = F.pad(numbers, (0, 0, 0, -len(numbers) % ROUND))
    found = [layer(F.embedding(part, rows).flatten(1)) for part in padded.split(_AT_ONCE)]
    return torch.cat(found)[: len(numbers)]


def find_partial(features2: Tensor, radius: int, window: int) -> tuple[WindowTerms, WindowTerms]:
    """The partial windows at the border, and around holes of (B, C, H, W)."""
    batch, _, height, width = features2.shape
    grid, border = find_border((batch, height, width), radius, window, features2.device)
    margin = radius + window // 2
    visible = codes(F.pad(features2.abs().amax(1) != 0, [margin] * 4), window)
    return border, find_holes(visible, (batch, height, width), radius, grid)


def _rows(features: Tensor, margin: int = 0) -> Tensor:
    """(B, C, H, W) -> (B·(H+2m)·(W+2m), C), zero in the margin."""
    padded = F.pad(features, [margin] * 4) if margin else features
    return padded.permute(0, 2, 3, 1).flatten(0, 2)


def windows(maps: Tensor, window: int) -> Tensor:
    """(B, H + window - 1, W + window - 1) -> (B·H·W, window²)."""
    return maps.unfold(1, window, 1).unfold(2, window, 1).reshape(-1, window**2)


def codes(maps: Tensor, window: int) -> Tensor:
    """The same of booleans, as one number with a bit for each: -> (B·H·W,)."""
    bits = maps.long()
    for dim in (1, 2):  # rows of windows, then their columns
        step, size = window ** (2 - dim), bits.shape[dim] - window + 1
        parts = (bits.narrow(dim, tap, size) << (tap * step) for tap in range(window))
        bits = reduce(torch.add, parts)
    return bits.flatten()


@lru_cache(maxsize=20)  # five levels of the last four sizes, as with CUDA graphs
@torch.inference_mode(mode=False)
def find_border(
    size: Size, radius: int, window: int, device: torch.device
) -> tuple[Grid, WindowTerms]:
    """The grid and the partial windows at the border of either image: a video needs them once."""
    batch, height, width = size
    tall, wide = height + 2 * radius, width + 2 * radius
    more, margins = window - 1, (window // 2, radius + window // 2)
    numbers1 = _numbers((batch, height + more, width + more), device)
    numbers2 = _numbers((batch, tall + more, wide + more), device) + numbers1.numel()
    image = torch.ones(size, dtype=torch.bool, device=device)
    inside1, inside2 = (codes(F.pad(image, [margin] * 4), window) for margin in margins)
    grid = Grid(windows(numbers1, window), windows(numbers2, window), inside1, inside2)
    seen = _numbers((batch, tall, wide), device).unfold(1, height, 1).unfold(2, width, 1)
    seen = seen.permute(2, 1, 0, 3, 4).reshape(-1, len(inside1))  # (U·V, B·H·W)
    whole = (1 << window**2) - 1
    wanted = (inside1 != whole) | (inside2 != whole)[seen]
    pixels = torch.arange(len(inside1), device=device).expand_as(seen)
    return grid, grid.share(seen, pixels, wanted, inside2)


def find_holes(visible: Tensor, size: Size, radius: int, grid: Grid) -> WindowTerms:
    """Partial windows where `visible`, (B·(H+2r)·(W+2r),), lacks something of the image."""
    _, height, width = size
    tall, wide, side = height + 2 * radius, width + 2 * radius, 2 * radius + 1
    seen = (visible != grid.inside2).nonzero().squeeze(1)
    steps = torch.arange(side * side, device=seen.device)[:, None]
    y, x = seen // wide % tall - steps % side, seen % wide - steps // side  # of p: (U·V, N)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixels = (seen // (tall * wide) * height + y) * width + x
    return grid.share(seen.expand_as(pixels), pixels, inside, visible)


def _terms(windows: Tensor, where: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which windows (N,), how much of them is seen -> the different ones, and which each is."""
    taps = windows.shape[1]
    keys, numbers = torch.unique((where << taps) + codes, return_inverse=True)
    where, bits = keys >> taps, 1 << torch.arange(taps, device=keys.device)
    return where, windows[where] * ((keys[:, None] & bits) > 0), numbers


def _numbers(size: Size, device: torch.device) -> Tensor:
    batch, height, width = size
    return torch.arange(batch * height * width, device=device).view(size)
