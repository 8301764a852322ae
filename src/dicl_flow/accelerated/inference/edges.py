"""Where the factored first layer does not hold: border pixels, and holes nearby.

The first layer of the matching net sees F1(p) and F2(q), q = p+u, through a 3x3 window, and
both are zero where F2(q) is hidden: outside the image or all zero. Away from such places the
layer is a sum of two terms, A(p) + B(q). Elsewhere it is a sum of terms that lack what the
other one does not see. There are few different ones: displacements share them.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .places import Places, find_border, find_holes, windows

_ROUND = 512  # rows of a product: oneDNN compiles anew for each new number of them
_AT_ONCE = 16 * _ROUND


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
        self._terms, self._minus_first = terms, _rows(terms.minus_first)
        self._features = torch.cat([_rows(features1, 1), _rows(features2, radius + 1)])
        grid, border = find_border(size, radius, features1.device)
        visible = windows(F.pad((features2 != 0).any(1), [radius + 1] * 4))
        kinds = (border, find_holes(visible, size, radius, grid))
        self._kinds = [(places, *self._exact(places)) for places in kinds]

    def mend(self, result: Tensor, chunk: range) -> None:
        """Overwrite the first layer less A, (U·V·B, 96, H, W), of some displacements."""
        rows, start = _rows(result), chunk.start * len(self._minus_first)
        for places, first, second in self._kinds:
            found = slice(places.bounds[chunk.start], places.bounds[chunk.stop])
            minus_first, rest = F.embedding(places.first[found], first).chunk(2, 1)
            values = torch.maximum(F.embedding(places.second[found], second), minus_first)
            rows[places.positions[found] - start] = values.add_(rest)

    def _exact(self, places: Places) -> tuple[Tensor, Tensor]:
        """Return the first terms, negative, with what to add to be less A, and the second."""
        taps1, taps2 = self._terms.taps.chunk(2)
        minus_first = self._product(places.taps1, taps1).add_(self._terms.bias).neg_()
        rest = F.embedding(places.pixels, self._minus_first) - minus_first
        return torch.cat([minus_first, rest], 1), self._product(places.taps2, taps2)

    def _product(self, numbers: Tensor, taps: Tensor) -> Tensor:
        """Numbers of features (N, 9) -> (N, 96)."""
        padded = F.pad(numbers, (0, 0, 0, -len(numbers) % _ROUND))
        parts = padded.split(_AT_ONCE)
        products = [F.embedding(part, self._features).flatten(1) @ taps for part in parts]
        return torch.cat(products)[: len(numbers)]


def _rows(features: Tensor, margin: int = 0) -> Tensor:
    """(B, C, H, W) -> (B·(H+2m)·(W+2m), C), zero in the margin."""
    padded = F.pad(features, [margin] * 4) if margin else features
    return padded.permute(0, 2, 3, 1).flatten(0, 2)
