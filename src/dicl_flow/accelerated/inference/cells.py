"""The matching net's last two layers on 2x2 pixels: ordinary convolutions at half the size.

The transposed convolution (4x4, stride 2) gives each coarse pixel four fine ones. Written as
a 3x3 convolution it gives them as four groups of channels, and the last convolution, a 3x3 on
the fine pixels, is then a 3x3 on the cells. The zeros outside are the same.
"""

import torch
from torch import Tensor

_PHASES = [(a, b) for a in range(2) for b in range(2)]
_SCORES = 8  # channels of a cell's scores: four pixels, filled up to what tensor cores like


def up_to_cells(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed (in, out, 4, 4), (out,) -> (4·out, in, 3, 3), (4·out,)."""
    inside, outside = weight.shape[:2]
    cells = weight.new_zeros(4, outside, inside, 3, 3)
    for phase, (a, b) in enumerate(_PHASES):
        for row, tap_y in _up_taps(a):
            for column, tap_x in _up_taps(b):
                cells[phase, :, :, row, column] = weight[:, :, tap_y, tap_x].T
    return cells.flatten(0, 1), bias.repeat(4)


def last_to_cells(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """(1, in, 3, 3), (1,) on pixels -> (8, 4·in, 3, 3), (8,) on cells; the last four are zero."""
    inside = weight.shape[1]
    cells = weight.new_zeros(_SCORES, 4, inside, 3, 3)
    for phase, (a, b) in enumerate(_PHASES):
        for tap_y in range(3):
            for tap_x in range(3):
                row, from_a = divmod(a + tap_y - 1, 2)
                column, from_b = divmod(b + tap_x - 1, 2)
                cells[phase, 2 * from_a + from_b, :, row + 1, column + 1] = weight[
                    0, :, tap_y, tap_x
                ]
    return cells.flatten(1, 2), torch.cat([bias.expand(4), bias.new_zeros(_SCORES - 4)])


def up_to_corners(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed (in, out, 4, 4), (out,) -> (4·out, in, 2, 2), (4·out,), to be padded by 1.

    The four pixels around a corner of the coarse pixels see the same four coarse ones: no work
    is for nothing, but the corners at the border have pixels beyond it, which must not be seen.
    """
    corners = [weight[:, :, a:, b:][:, :, ::2, ::2].flip(2, 3) for a, b in _PHASES]
    return torch.cat(corners, 1).transpose(0, 1), bias.repeat(4)


def _up_taps(phase: int) -> list[tuple[int, int]]:
    """Which rows of a 3x3 kernel a phase uses, each with its row of the transposed 4x4 one."""
    return [
        (offset + 1, phase + 1 - 2 * offset)
        for offset in (-1, 0, 1)
        if 0 <= phase + 1 - 2 * offset < 4
    ]
