"""The matching net's last two layers: a transposed convolution, and one that gives the scores.

The transposed convolution (4x4, stride 2) makes four fine pixels of each coarse one. The four fine
pixels around a corner of the coarse pixels see the same four coarse ones: it is a 2x2 convolution
to four groups of channels, without products with zero (`folded.up_to_corners`). Where Winograd's
products with zero cost nothing, it is a 3x3 convolution to the four pixels of each coarse one
(`folded.up_to_cells`).

The last layer, to one channel, is turned around: not what a score collects from its nine
neighbours, but what a pixel adds to the scores around it.

- On a CPU (`cpu.ScoreConv`): one product of matrices for all taps, then sums of shifted maps.
- On CUDA, both layers are one kernel, and the fine pixels stay on the chip; the four pixels of a
  corner add to the 4x4 scores around it, and `readout` adds these patches up.
- In training, the transposed layer is cuDNN's, whose kernels compute at least eight channels, and
  read the input several times backward; the last one is two kernels. Forward, programs go down the
  rows: what six pixels of a row add to four scores in each of three rows is one product of
  matrices. Backward, one kernel reads input and gradient once, writes the gradient of the input,
  and adds up that of the weight.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..models.matching import MatchingNet
from .folded import fold, is_reduced, up_to_corners
from .kernels import check, kernel, product_side, tl, triton

FEWEST_CHANNELS = 8  # of cuDNN's kernels for tensor cores
_RUNS, _TALLEST = tl.constexpr(64), 16  # of four scores; rows of a program
_ENOUGH = 512  # programs, before they get more rows: about four for each multiprocessor
_TILE = tl.constexpr(128)  # pixels, backward
_PROGRAMS = 1024  # that add up gradients
_TAPS = tl.constexpr(16)  # nine, and idle ones: what a product of tiles needs


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
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of corners."""
    inner_columns: tl.constexpr = product_side(depth)
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
    rows, warps, stages = (32, 8, 2) if x.dtype == torch.float32 else (128, 4, 3)
    shape = {"depth": depth, "columns": len(bias), "rows": rows}
    maps, sizes = (x, up, bias, last, patches), (items, height, width)
    grid = (triton.cdiv(items * (height + 1) * (width + 1), rows),)
    _patches[grid](*maps, *sizes, **shape, num_warps=warps, num_stages=stages)


class Tail(nn.Module):
    """The last two layers: the transposed one, and the one that gives the scores."""

    def __init__(self, net: MatchingNet, dtype: torch.dtype) -> None:
        super().__init__()
        weight, bias = fold(net.up)
        # channels to add for products of tiles
        more_in, more_out = (product_side(width) - width for width in weight.shape[:2])
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


def last_to_patches(weight: Tensor) -> Tensor:
    """(1, in, 3, 3) on pixels -> (4·in, 4·4): from the pixels of a corner to those around it."""
    patches = weight.new_zeros(2, 2, weight.shape[1], 4, 4)
    for a, b in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        patches[a, b, :, a : a + 3, b : b + 3] = weight[0].flip(1, 2)
    return patches.flatten(3, 4).flatten(0, 2)


@triton.jit
def _band(weight, pixel, channel, channels: tl.constexpr):
    """What the channels of a run's six pixels add to its scores, as (channel, 4 · row + score)."""
    part = tl.arange(0, 16)[None, :]
    across = pixel[:, None] - part % 4
    known = (across >= 0) & (across < 3) & (part < 12) & (channel < channels)[:, None]
    return tl.load(weight + (part // 4 * 3 + across) * channels + channel[:, None], known, 0.0)


@kernel("items height width tall")
def _forward(x, weight, bias, score, items, height, width, tall, channels: tl.constexpr):
    """`_RUNS` strips, each of `tall` rows of four scores; a row of pixels is part of three."""
    columns: tl.constexpr = product_side(channels)
    in_row, strips = tl.cdiv(width, 4), tl.cdiv(height, tall)
    run = tl.program_id(0) * _RUNS + tl.arange(0, _RUNS)
    start, strip = run % in_row * 4, run // in_row
    first = strip % strips * tall
    row = strip // strips * height + first  # of all items
    top = tl.min(row, 0)  # places relative to it need 32 bits
    place, known = (row - top) * width + start, (row < items * height)[:, None]
    inner, column, part = tl.arange(0, 4 * columns), tl.arange(0, columns), tl.arange(0, 16)
    left = _band(weight, column * 0, column, channels)
    middle = _band(weight, 1 + inner // columns, inner % columns, channels)
    right = _band(weight, column * 0 + 5, column, channels)
    across, channel = (inner // columns)[None, :], (inner % columns)[None, :]
    real = known & (start[:, None] + across < width) & (channel < channels)
    has_left = known & (start > 0)[:, None] & (column < channels)[None, :]
    has_right = known & (start + 4 < width)[:, None] & (column < channels)[None, :]
    inner_place = (place[:, None] + across) * channels + channel
    edge_place = place[:, None] * channels + column[None, :]
    score_place = place[:, None] + tl.arange(0, 4)[None, :]
    has_score = known & (start[:, None] + tl.arange(0, 4)[None, :] < width)
    shift = tl.load(bias).to(tl.float32)
    waiting, here = tl.zeros((_RUNS, 16), tl.float32), tl.zeros((_RUNS, 16), tl.float32)
    for step in tl.range(tall + 2, num_stages=2):
        line = (top + step - 1).to(tl.int64) * width
        y = (first + step - 1)[:, None]
        inside = (y >= 0) & (y < height)
        source = x + line * channels
        pixels = tl.load(source + inner_place, inside & real, 0.0)
        after = tl.dot(pixels, middle, input_precision="ieee")
        pixels = tl.load(source - channels + edge_place, inside & has_left, 0.0)
        after = tl.dot(pixels, left, after, input_precision="ieee")
        pixels = tl.load(source + 4 * channels + edge_place, inside & has_right, 0.0)
        after = tl.dot(pixels, right, after, input_precision="ieee")
        total = tl.where(part < 8, waiting, after)  # no weights from 12
        value = tl.sum(tl.reshape(total, (_RUNS, 4, 4)), 1) + shift
        target = score + line - width + score_place
        tl.store(target, value.to(score.dtype.element_ty), has_score & (step > 1) & (y <= height))
        waiting, here = tl.where(part < 4, here, after), after


@kernel("pixels height width")
def _backward(
    x,
    weight,
    gradient,
    x_gradient,
    partial,
    pixels,
    height,
    width,
    channels: tl.constexpr,
):
    """Every `num_programs`-th tile of pixels; `partial` (P, 16, channels) is of the weight."""
    columns: tl.constexpr = product_side(channels)
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    column, tap = tl.arange(0, columns)[None, :], tl.arange(0, _TAPS)
    dy, dx = (tap // 3 - 1)[None, :], (tap % 3 - 1)[None, :]
    known = (tap < 9)[:, None] & (column < channels)
    factor = tl.load(weight + tap[:, None] * channels + column, known, 0.0)
    total = tl.zeros((_TAPS, columns), tl.float32)
    for step in tl.range(tl.cdiv(pixels, _TILE * num_programs), num_stages=2):
        place = ((step * num_programs + program) * _TILE + tl.arange(0, _TILE))[:, None]
        line = place // width
        row, shift = line % height - dy, place - line * width - dx
        inside = (row >= 0) & (row < height) & (shift >= 0) & (shift < width)
        reached = inside & (place < pixels) & (tap < 9)[None, :]
        # of the nine scores that a pixel is part of
        incoming = tl.load(gradient + place - dy * width - dx, reached, 0.0)
        mask = (place < pixels) & (column < channels)
        source = place.to(tl.int64) * channels + column
        value = tl.load(x + source, mask, 0.0)
        result = tl.dot(incoming, factor, input_precision="ieee")
        tl.store(x_gradient + source, result.to(x_gradient.dtype.element_ty), mask)
        total = tl.dot(tl.trans(incoming), value, total, input_precision="ieee")
    target = partial + (program * _TAPS + tap[:, None]) * channels + column
    tl.store(target, total, column < channels)


class _LastLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        taps = weight.to(x.dtype).permute(0, 2, 3, 1).reshape(9, -1)  # as autocast would round
        items, _, height, width = x.shape
        score = x.new_empty((items, 1, height, width))
        across = triton.cdiv(width, 4)
        tall = min(max(items * height * across // (_RUNS.value * _ENOUGH), 2), _TALLEST)
        strips = triton.cdiv(height, tall)
        tall = triton.cdiv(height, strips)  # strips of the same height
        _forward[(triton.cdiv(items * strips * across, _RUNS.value),)](
            x, taps, bias, score, items, height, width, tall, channels=x.shape[1]
        )
        ctx.save_for_backward(x, taps)
        return score

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, taps = ctx.saved_tensors
        gradient, result = gradient.contiguous(), torch.empty_like(x)
        channels, size = x.shape[1], (gradient.numel(), *x.shape[2:])
        programs = min(triton.cdiv(size[0], _TILE.value), _PROGRAMS)
        partial = x.new_empty((programs, _TAPS.value, channels), dtype=torch.float32)
        _backward[(programs,)](x, taps, gradient, result, partial, *size, channels=channels)
        weight = partial.sum(0)[:9].unflatten(0, (1, 3, 3)).permute(0, 3, 1, 2)
        return result, weight, gradient.sum(dtype=torch.float32)[None]


class WideConv2d(nn.Conv2d):
    """A convolution to very few channels, computed with unused channels added.

    With fewer than eight, the backward pass of cuDNN takes many times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H, W)."""
        idle = FEWEST_CHANNELS - self.out_channels
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, 0, 0, idle))
        bias = None if self.bias is None else F.pad(self.bias, (0, idle))
        return F.conv2d(x, weight, bias, padding=self.padding)[:, : self.out_channels]


class ScoreConv2d(nn.Conv2d):
    """A 3x3 convolution to one channel, at the size of its input, as two kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, 1, H, W)."""
        x = x.contiguous(memory_format=torch.channels_last)
        check(x)
        return _LastLayer.apply(x, self.weight, self.bias)
