"""A 3x3 convolution to one channel, for training: the last layer of the matching net.

cuDNN's kernels compute at least eight channels, and their backward passes read the input several
times. Forward, each program adds the nine products of its pixels. Backward, one kernel reads input
and gradient once: it writes the gradient of the input, and adds up that of the weight.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .layout import check

_RUN, _TILE, _WARPS = 64, 128, 4  # pixels of a program, forward; of a tile, backward
_PROGRAMS = 1024  # that add up gradients
_TAPS = tl.constexpr(16)  # nine, and idle ones: what a product of tiles needs


@triton.jit(do_not_specialize=["pixels", "height", "width"])
def _forward(
    x,
    weight,
    bias,
    score,
    pixels,
    height,
    width,
    channels: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """The scores of a run of pixels."""
    place = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)[None, :]
    row, shift = place // width % height, place % width
    total = tl.zeros((rows, columns), tl.float32)
    for tap in tl.static_range(9):
        dy, dx = tap // 3 - 1, tap % 3 - 1
        inside = (row + dy >= 0) & (row + dy < height) & (shift + dx >= 0) & (shift + dx < width)
        mask = (inside & (place < pixels))[:, None] & (column < channels)
        source = x + (place + dy * width + dx)[:, None] * channels + column
        factor = tl.load(weight + tap * channels + column, column < channels, 0.0)
        total += tl.load(source, mask, 0.0).to(tl.float32) * factor.to(tl.float32)
    value = tl.sum(total, 1) + tl.load(bias).to(tl.float32)
    tl.store(score + place, value.to(score.dtype.element_ty), place < pixels)


@triton.jit(do_not_specialize=["pixels", "height", "width"])
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
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    column, tap = tl.arange(0, columns)[None, :], tl.arange(0, _TAPS)
    dy, dx = (tap // 3 - 1)[None, :], (tap % 3 - 1)[None, :]
    known = (tap < 9)[:, None] & (column < channels)
    factor = tl.load(weight + tap[:, None] * channels + column, known, 0.0)
    total = tl.zeros((_TAPS, columns), tl.float32)
    for step in tl.range(tl.cdiv(pixels, rows * num_programs), num_stages=2):
        place = ((step * num_programs + program) * rows + tl.arange(0, rows))[:, None]
        row, shift = place // width % height - dy, place % width - dx
        inside = (row >= 0) & (row < height) & (shift >= 0) & (shift < width)
        reached = inside & (place < pixels) & (tap < 9)[None, :]
        # of the nine scores that a pixel is part of
        given = tl.load(gradient + place - dy * width - dx, reached, 0.0)
        mask = (place < pixels) & (column < channels)
        value = tl.load(x + place * channels + column, mask, 0.0)
        result = tl.dot(given, factor, input_precision="ieee")
        target = x_gradient + place * channels + column
        tl.store(target, result.to(x_gradient.dtype.element_ty), mask)
        total = tl.dot(tl.trans(given), value, total, input_precision="ieee")
    target = partial + (program * _TAPS + tap[:, None]) * channels + column
    tl.store(target, total, column < channels)


class _LastLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        taps = weight.to(x.dtype).permute(0, 2, 3, 1).reshape(9, -1)  # as autocast would round
        score = x.new_empty((x.shape[0], 1, *x.shape[2:]))
        size = _size(x)
        with torch.cuda.device_of(x):
            _forward[(triton.cdiv(size[0], _RUN),)](
                x, taps, bias, score, *size, rows=_RUN, **_shape(x)
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
        with torch.cuda.device_of(x):
            _backward[(programs,)](
                x, taps, gradient, result, partial, *size, rows=_TILE, **_shape(x)
            )
        weight = partial.sum(0)[:9].unflatten(0, (1, 3, 3)).permute(0, 3, 1, 2)
        return result, weight, gradient.sum(dtype=torch.float32)[None]


def _size(x: Tensor) -> tuple[int, int, int]:
    """All pixels, height, width."""
    return x.numel() // x.shape[1], x.shape[2], x.shape[3]


def _shape(x: Tensor) -> dict[str, int]:
    columns = max(triton.next_power_of_2(x.shape[1]), 16)
    return {"channels": x.shape[1], "columns": columns, "num_warps": _WARPS}


def last_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, C, H, W), channels last -> (B, 1, H, W); `weight` is (1, C, 3, 3), `bias` (1,)."""
    check(x)
    return _LastLayer.apply(x, weight, bias)
