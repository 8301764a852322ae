"""The last two layers in one pass: the fine pixels stay on the chip."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.matching import MatchingNet
from ..folded import fold, is_reduced, up_to_corners
from ..kernels import check, kernel, product_side, tl, triton


@triton.jit
def _locate(run, items, height, width, rows: tl.constexpr):
    """Of each corner: whether it exists, its line of all lines, its row, column, lower right."""
    corner = run * rows + tl.arange(0, rows)
    line = corner // (width + 1)
    item = line // (height + 1)
    i, j = line - item * (height + 1), corner - line * (width + 1)
    known = corner < items * (height + 1) * (width + 1)
    return known, line, i, j, ((item * height + i) * width + j).to(tl.int64)


@triton.jit
def _finish(value, shift, adds, patches, run, items, height, width):
    """Bias, ReLU and last layer of a run of corners, each with the channels of four pixels."""
    rows: tl.constexpr = value.shape[0]
    columns: tl.constexpr = value.shape[1]
    known, line, i, j, _ = _locate(run, items, height, width, rows)
    # pixels outside the image are zero, and others no larger than a number can be
    most = 65504.0 if adds.dtype == tl.float16 else float("inf")
    top, bottom = tl.where(i > 0, most, 0.0), tl.where(i < height, most, 0.0)
    left, right = tl.where(j > 0, most, 0.0), tl.where(j < width, most, 0.0)
    column, place = tl.arange(0, columns)[None, :], tl.arange(0, 16)[None, :]
    limit = tl.minimum(
        tl.where((column & (columns // 2)) != 0, bottom[:, None], top[:, None]),
        tl.where((column & (columns // 4)) != 0, right[:, None], left[:, None]),
    )
    value = tl.minimum(tl.maximum(value + shift, 0.0), limit)
    value = tl.dot(value.to(adds.dtype), adds, input_precision="tf32x3")
    target = (line[:, None] * 4 + place // 4).to(tl.int64) * (width + 1) + j[:, None]
    value = value.to(patches.dtype.element_ty)
    tl.store(patches + target * 4 + place % 4, value, known[:, None])


@kernel("items height width")
def _patches(
    x,
    up,
    bias,
    last,
    patches,
    items,
    height,
    width,
    depth: tl.constexpr,
    inner_columns: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of corners."""
    run, column, inner = tl.program_id(0), tl.arange(0, columns), tl.arange(0, inner_columns)
    known, _, i, j, source = _locate(run, items, height, width, rows)
    value = tl.zeros((rows, columns), tl.float32)
    for tap in range(4):
        down, across = tap // 2 - 1, tap % 2 - 1
        in_rows = (i + down >= 0) & (i + down < height)
        inside = known & in_rows & (j + across >= 0) & (j + across < width)
        place = (source + down * width + across)[:, None] * depth + inner[None, :]
        coarse = tl.load(x + place, inside[:, None] & (inner < depth)[None, :], 0.0)
        weight = tl.load(up + (tap * columns + column[None, :]) * inner_columns + inner[:, None])
        value = tl.dot(coarse, weight, value, input_precision="tf32x3")
    shift = tl.load(bias + column)[None, :]
    adds = tl.load(last + column[:, None] * 16 + tl.arange(0, 16)[None, :])
    _finish(value, shift, adds, patches, run, items, height, width)


def score_patches(x: Tensor, up: Tensor, bias: Tensor, last: Tensor, patches: Tensor) -> None:
    """Write what the four pixels around each corner add to the scores, as `readout` reads it.

    `x` is (N, in, H/2, W/2), channels last, `patches` (N, H/2 + 1, 4, W/2 + 1, 4); `up`
    (4, 4·out, in) and `bias` (4·out,) are the transposed layer, `last` (4·out, 4·4) the last one,
    all with channels of zeros up to a power of two.
    """
    check(x)
    items, depth, height, width = x.shape
    arguments = (x, up, bias, last, patches, items, height, width)
    widths = {"depth": depth, "inner_columns": up.shape[2], "columns": len(bias)}
    corners = items * (height + 1) * (width + 1)
    rows, warps, stages = (32, 8, 2) if x.dtype == torch.float32 else (128, 4, 3)
    tuned = {"rows": rows, "num_warps": warps, "num_stages": stages}
    _patches[(triton.cdiv(corners, rows),)](*arguments, **widths, **tuned)


class Tail(nn.Module):
    """The last two layers: the transposed one, and the one that gives the scores."""

    def __init__(self, net: MatchingNet, dtype: torch.dtype) -> None:
        super().__init__()
        weight, bias = fold(net.up)
        more_in, more_out = (_missing(width) for width in weight.shape[:2])
        weight = F.pad(weight, [0, 0, 0, 0, 0, more_out, 0, more_in])
        weight, bias = up_to_corners(weight, F.pad(bias, [0, more_out]))
        self.up = nn.Buffer(weight.to(dtype).permute(2, 3, 0, 1).flatten(0, 1).contiguous())
        self.bias = nn.Buffer(bias.float())
        # float16 has more digits than bfloat16
        precise = torch.float16 if is_reduced(dtype) else dtype
        last = F.pad(net.score.weight.detach(), [0, 0, 0, 0, 0, more_out])
        self.last = nn.Buffer(last_to_patches(last).to(precise))
        assert net.score.bias is not None
        self.score_bias = nn.Buffer(net.score.bias.detach().float())

    def room(self, items: int, height: int, width: int) -> Tensor:
        """Where `forward` puts what `readout` takes."""
        return self.last.new_empty(items, height // 2 + 1, 4, width // 2 + 1, 4)

    def forward(self, x: Tensor, patches: Tensor) -> None:
        """(N, in, H/2, W/2), channels last -> (N, H/2 + 1, 4, W/2 + 1, 4)."""
        score_patches(x, self.up, self.bias, self.last, patches)


def _missing(width: int) -> int:
    """How many channels to add for products of tiles."""
    return product_side(width) - width


def last_to_patches(weight: Tensor) -> Tensor:
    """(1, in, 3, 3) on pixels -> (4·in, 4·4): from the pixels of a corner to those around it."""
    patches = weight.new_zeros(2, 2, weight.shape[1], 4, 4)
    for a, b in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        patches[a, b, :, a : a + 3, b : b + 3] = weight[0].flip(1, 2)
    return patches.flatten(3, 4).flatten(0, 2)
