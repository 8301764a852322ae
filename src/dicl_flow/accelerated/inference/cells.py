"""The matching net's last two layers at half the size: on cells of 2x2 pixels, or on corners.

The transposed convolution (4x4, stride 2) makes four fine pixels of each coarse one. Written as a
convolution of the coarse pixels it gives them as four groups of channels: those of a cell, or
those around a corner of the coarse pixels.
"""

import torch
from torch import Tensor, nn

_PHASES = [(a, b) for a in range(2) for b in range(2)]


def up_to_cells(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed (in, out, 4, 4), (out,) -> (4·out, in, 3, 3), (4·out,)."""
    inside, outside = weight.shape[:2]
    cells = weight.new_zeros(4, outside, inside, 3, 3)
    for phase, (a, b) in enumerate(_PHASES):
        for row, tap_y in _up_taps(a):
            for column, tap_x in _up_taps(b):
                cells[phase, :, :, row, column] = weight[:, :, tap_y, tap_x].T
    return cells.flatten(0, 1), bias.repeat(4)


def cells_to_pixels(cells: Tensor) -> Tensor:
    """(B, 4·C, H, W) -> (B, C, 2H, 2W)."""
    phases = cells.unflatten(1, (2, 2, -1))
    return phases.permute(0, 3, 4, 1, 5, 2).flatten(4, 5).flatten(2, 3)


def up_to_corners(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed (in, out, 4, 4), (out,) -> (4·out, in, 2, 2), (4·out,), to be padded by 1.

    The four pixels around a corner of the coarse pixels see the same four coarse ones, so that no
    product is with zero; but corners at the border have pixels outside it, which must be dropped.
    """
    corners = [weight[:, :, a:, b:][:, :, ::2, ::2].flip(2, 3) for a, b in _PHASES]
    return torch.cat(corners, 1).transpose(0, 1), bias.repeat(4)


def last_to_patches(weight: Tensor) -> Tensor:
    """(1, in, 3, 3) on pixels -> (4·in, 4·4): from the pixels of a corner to those around it."""
    patches = weight.new_zeros(2, 2, weight.shape[1], 4, 4)
    for a, b in _PHASES:
        patches[a, b, :, a : a + 3, b : b + 3] = weight[0].flip(1, 2)
    return patches.flatten(3, 4).flatten(0, 2)


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


def _up_taps(phase: int) -> list[tuple[int, int]]:
    """Which rows of a 3x3 kernel a phase uses, each with its row of the transposed 4x4 one."""
    return [
        (offset + 1, phase + 1 - 2 * offset)
        for offset in (-1, 0, 1)
        if 0 <= phase + 1 - 2 * offset < 4
    ]
