"""The last layer in plain torch operations."""

import torch
from torch import Tensor, nn

from ..folded import cells_to_pixels


class ScoreConv(nn.Module):
    """The last layer after `up_to_corners`, never below float32: a product for each tap.

    oneDNN would compute 16 channels, 15 of them unused. To compute what a pixel adds to each
    of its neighbours, and to add it there, is a quarter of that work.
    """

    def __init__(self, conv: nn.Conv2d, dtype: torch.dtype) -> None:
        super().__init__()
        assert conv.bias is not None
        dtype = torch.promote_types(dtype, torch.float32)
        self.taps = nn.Buffer(conv.weight.detach()[0].permute(1, 2, 0).flatten(0, 1).to(dtype))
        self.bias = nn.Buffer(conv.bias.detach().to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4·in, H/2 + 1, W/2 + 1), channels last -> (B, H, W)."""
        corners = x.permute(0, 2, 3, 1).unflatten(3, (2, 2, -1)).transpose(2, 3)
        pixels = corners.to(self.taps.dtype, memory_format=torch.contiguous_format)
        products = self.taps @ pixels.flatten(0, 4).T
        batch, down, _, across = corners.shape[:4]
        return self._add(products.view(3, 3, batch, 2 * down, 2 * across)[..., 1:-1, 1:-1])

    def _add(self, products: Tensor) -> Tensor:
        """Add what each pixel adds to its neighbours: (3, 3, B, H, W) -> (B, H, W)."""
        left, rows, right = products.unbind(1)
        rows[..., 1:] += left[..., :-1]
        rows[..., :-1] += right[..., 1:]
        above, scores, below = rows.unbind(0)
        scores[:, 1:] += above[:, :-1]
        scores[:, :-1] += below[:, 1:]
        return scores.add_(self.bias)


class CellScoreConv(ScoreConv):
    """The last layer after `up_to_cells`, whose maps are in planes."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4·in, H/2, W/2) -> (B, H, W)."""
        batch, _, down, across = x.shape
        cells = x.to(self.taps.dtype).contiguous().view(batch, 4, -1, down * across)
        products = (self.taps @ cells).view(batch, 4 * 9, down, across)
        return self._add(cells_to_pixels(products).transpose(0, 1).unflatten(0, (3, 3)))
