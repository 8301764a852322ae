"""Where the factored first layer does not hold: border pixels, and holes nearby.

The first layer of the matching net sees F1(p) and F2(q), q = p+u, through a 3x3 window, and
both are zero where F2(q) is hidden: outside the image or all zero. Away from such places the
layer is a sum of two terms, A(p) + B(q). Near the border of either image they lack taps that
lie outside of the other; there are few such terms, and displacements share them. What lies
near holes is computed as it is defined.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .places import find_border, find_places, windows

_ROUND = 512  # rows of a product: oneDNN compiles anew for each new number of them


class Terms(NamedTuple):
    """Of the first layer, with what they are made of."""

    minus_first: Tensor
    """-A: (B, 96, H, W)."""
    second_part: Tensor
    """B: (B, 96, H+2r, W+2r), without bias."""
    taps: Tensor
    """The weights of A, then those of B: (2·9·C, 96)."""
    bias: Tensor


class Edges:
    """Puts exact values where the first layer is another sum."""

    def __init__(self, features1: Tensor, features2: Tensor, terms: Terms) -> None:
        """Features (B, C, H, W)."""
        batch, _, height, width = features1.shape
        radius = (terms.second_part.shape[-1] - width) // 2
        size = (batch, height, width)
        self._border = border = find_border(size, radius, features1.device)
        self._taps, self._bias = terms.taps, terms.bias
        self._minus_first = _rows(terms.minus_first)
        self._features = torch.cat([_rows(features1, 1), _rows(features2, radius + 1)])
        taps1, taps2 = terms.taps.chunk(2)
        first = torch.addmm(terms.bias, self._patches(border.taps1), taps1, beta=-1, alpha=-1)
        rest = F.embedding(border.pixels, self._minus_first) - first
        self._first = torch.cat([first, rest], 1)
        self._second = self._patches(border.taps2) @ taps2
        self._visible = windows(F.pad((features2 != 0).any(1), [radius + 1] * 4))
        holes, some = (self._visible != border.inside2).any(1), self._visible.any(1)
        self._empty = find_places(holes & ~some, size, radius)
        self._partial = find_places(holes & some, size, radius)

    def mend(self, result: Tensor, chunk: range) -> None:
        """Overwrite the first layer less A, (U·V·B, 96, H, W), of some displacements."""
        rows, start = _rows(result), chunk.start * len(self._minus_first)
        positions, first, second = self._border.places.of(chunk)
        minus_first, rest = F.embedding(first, self._first).chunk(2, 1)
        values = torch.maximum(F.embedding(second, self._second), minus_first)
        rows[positions - start] = values.add_(rest)
        for places, exact in ((self._empty, self._of_nothing), (self._partial, self._of_a_part)):
            positions, pixels, seen = places.of(chunk)
            if len(positions):
                values = F.embedding(pixels, self._minus_first)
                rows[positions - start] = values.add_(exact(pixels, seen))

    def _of_nothing(self, pixels: Tensor, seen: Tensor) -> Tensor:
        """(96,): the first layer of a window that shows nothing."""
        return self._bias.relu()

    def _of_a_part(self, pixels: Tensor, seen: Tensor) -> Tensor:
        """Pixels p and q, (N,) each -> the first layer by its definition: (N, 96)."""
        border, count = self._border, len(pixels)
        taps = [
            F.embedding(pixels, border.windows1).mul_(self._visible.index_select(0, seen)),
            F.embedding(seen, border.windows2).mul_(border.inside1.index_select(0, pixels)),
        ]
        padded = F.pad(torch.cat(taps, 1), (0, 0, 0, -count % _ROUND))
        return torch.addmm(self._bias, self._patches(padded), self._taps).relu_()[:count]

    def _patches(self, taps: Tensor) -> Tensor:
        """Numbers of features (N, taps), 0 for what is hidden -> (N, taps·C)."""
        return F.embedding(taps, self._features).flatten(1)


def _rows(features: Tensor, margin: int = 0) -> Tensor:
    """(B, C, H, W) -> (B·(H+2m)·(W+2m), C), zero in the margin."""
    padded = F.pad(features, [margin] * 4) if margin else features
    return padded.permute(0, 2, 3, 1).flatten(0, 2)
