"""The first layer of the matching net near borders and holes, where its factors do not hold.

The layer sees F1(p) and F2(q), q = p+u, through a window, and both are zero where F2(q) is hidden:
outside the image or all zero. Away from such places the layer is a sum of two terms, A(p) + B(q).
Elsewhere each term lacks the taps that the other frame hides. Few of these terms differ:
displacements share them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .factored_layer import FactoredLayer
from .places import Places, find_border, find_holes, windows

_ROUND = 512  # rows of a product: oneDNN compiles a kernel for each new number of them
_AT_ONCE = 16 * _ROUND


class Edges:
    """Writes exact values where the sum of both terms is wrong."""

    def __init__(
        self, layer: FactoredLayer, features1: Tensor, features2: Tensor, minus_first: Tensor
    ) -> None:
        """Features (B, C, H, W); the layer's first term, negated: (B, channels, H, W)."""
        batch, _, height, width = features1.shape
        size, radius, window = (batch, height, width), layer.radius, layer.window
        margin = window // 2
        self._taps, self._bias = layer.taps_of_terms(), layer.bias
        self._minus_first = _rows(minus_first)
        self._features = torch.cat([_rows(features1, margin), _rows(features2, radius + margin)])
        grid, border = find_border(size, radius, window, features1.device)
        visible = windows(F.pad((features2 != 0).any(1), [radius + margin] * 4), window)
        kinds = (border, find_holes(visible, size, radius, grid))
        self._kinds = [(places, *self._exact(places)) for places in kinds]

    def correct(self, result: Tensor, chunk: range) -> None:
        """Overwrite the first layer minus A, (U·V·B, channels, H, W), of some displacements."""
        rows, start = _rows(result), chunk.start * len(self._minus_first)
        for places, first, second in self._kinds:
            found = slice(places.bounds[chunk.start], places.bounds[chunk.stop])
            minus_first, rest = F.embedding(places.first[found], first).chunk(2, 1)
            values = torch.maximum(F.embedding(places.second[found], second), minus_first)
            rows[places.positions[found] - start] = values.add_(rest).to(rows.dtype)

    def _exact(self, places: Places) -> tuple[Tensor, Tensor]:
        """Return the negated first terms, with what to add to subtract A, and the second terms."""
        taps1, taps2 = self._taps
        minus_first = self._product(places.taps1, taps1).add_(self._bias).neg_()
        rest = F.embedding(places.pixels, self._minus_first) - minus_first
        return torch.cat([minus_first, rest], 1), self._product(places.taps2, taps2)

    def _product(self, numbers: Tensor, taps: Tensor) -> Tensor:
        """Numbers of features (N, window²) -> (N, channels)."""
        padded = F.pad(numbers, (0, 0, 0, -len(numbers) % _ROUND))
        parts = padded.split(_AT_ONCE)
        products = [F.embedding(part, self._features).flatten(1) @ taps for part in parts]
        return torch.cat(products)[: len(numbers)]


def _rows(features: Tensor, margin: int = 0) -> Tensor:
    """(B, C, H, W) -> (B·(H+2m)·(W+2m), C), zero in the margin."""
    padded = F.pad(features, [margin] * 4) if margin else features
    return padded.permute(0, 2, 3, 1).flatten(0, 2)
