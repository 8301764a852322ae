"""The last layer in training: a 3x3 convolution to one channel.

cuDNN's kernels compute at least eight channels, and their backward passes read the input several
times. Forward, programs go down the rows: what six pixels of a row add to four scores in each of
three rows is one product of matrices. Backward, one kernel reads input and gradient once: it writes
the gradient of the input, and adds up that of the weight.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..kernels import check, kernel, product_side, tl, triton

FEWEST_CHANNELS = 8  # of cuDNN's kernels for tensor cores
_RUNS, _TALLEST = 64, 16  # of four scores; rows of a program
_ENOUGH = 512  # programs, before they get more rows: about four for each multiprocessor
_TILE = 128  # pixels, backward
_PROGRAMS = 1024  # that add up gradients
_TAPS = tl.constexpr(16)  # nine, and idle ones: what a product of tiles needs


@triton.jit
def _band(weight, pixel, channel, channels: tl.constexpr):
    """What the channels of a run's six pixels add to its scores, as (channel, 4 · row + score)."""
    part = tl.arange(0, 16)[None, :]
    across = pixel[:, None] - part % 4
    known = (across >= 0) & (across < 3) & (part < 12) & (channel < channels)[:, None]
    return tl.load(weight + (part // 4 * 3 + across) * channels + channel[:, None], known, 0.0)


@kernel("items height width tall")
def _forward(
    x,
    weight,
    bias,
    score,
    items,
    height,
    width,
    tall,
    channels: tl.constexpr,
    columns: tl.constexpr,
    runs: tl.constexpr,
):
    """`runs` strips, each of `tall` rows of four scores; a row of pixels is part of three."""
    in_row, strips = tl.cdiv(width, 4), tl.cdiv(height, tall)
    run = tl.program_id(0) * runs + tl.arange(0, runs)
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
    waiting, here = tl.zeros((runs, 16), tl.float32), tl.zeros((runs, 16), tl.float32)
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
        value = tl.sum(tl.reshape(total, (runs, 4, 4)), 1) + shift
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
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """Every `num_programs`-th tile of pixels; `partial` (P, 16, channels) is of the weight."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    column, tap = tl.arange(0, columns)[None, :], tl.arange(0, _TAPS)
    dy, dx = (tap // 3 - 1)[None, :], (tap % 3 - 1)[None, :]
    known = (tap < 9)[:, None] & (column < channels)
    factor = tl.load(weight + tap[:, None] * channels + column, known, 0.0)
    total = tl.zeros((_TAPS, columns), tl.float32)
    for step in tl.range(tl.cdiv(pixels, rows * num_programs), num_stages=2):
        place = ((step * num_programs + program) * rows + tl.arange(0, rows))[:, None]
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
        tall = min(max(items * height * across // (_RUNS * _ENOUGH), 2), _TALLEST)
        strips = triton.cdiv(height, tall)
        tall = triton.cdiv(height, strips)  # strips of the same height
        _forward[(triton.cdiv(items * strips * across, _RUNS),)](
            x, taps, bias, score, items, height, width, tall, runs=_RUNS, **_shape(x)
        )
        ctx.save_for_backward(x, taps)
        return score

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, taps = ctx.saved_tensors
        gradient, result, size = gradient.contiguous(), torch.empty_like(x), _size(x)
        programs = min(triton.cdiv(size[0], _TILE), _PROGRAMS)
        partial = x.new_empty((programs, _TAPS.value, x.shape[1]), dtype=torch.float32)
        _backward[(programs,)](x, taps, gradient, result, partial, *size, rows=_TILE, **_shape(x))
        weight = partial.sum(0)[:9].unflatten(0, (1, 3, 3)).permute(0, 3, 1, 2)
        return result, weight, gradient.sum(dtype=torch.float32)[None]


def _size(x: Tensor) -> tuple[int, int, int]:
    """All pixels, height, width."""
    return x.numel() // x.shape[1], x.shape[2], x.shape[3]


def _shape(x: Tensor) -> dict[str, int]:
    return {"channels": x.shape[1], "columns": product_side(x.shape[1])}


def last_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, C, H, W), channels last -> (B, 1, H, W); `weight` is (1, C, 3, 3), `bias` (1,)."""
    check(x)
    return _LastLayer.apply(x, weight, bias)


class WideConv2d(nn.Conv2d):
    """A convolution to very few channels, computed with unused channels added.

    cuDNN's tensor-core kernels need at least eight channels; with fewer, its backward pass uses
    one that takes many times as long.
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
        assert self.bias is not None
        return last_layer(x.contiguous(memory_format=torch.channels_last), self.weight, self.bias)
