"""Batch norm and ReLU in training, with the batch's statistics or frozen ones: channels last.

Only the input is kept: the mask of the ReLU is computed from it again. Sums are made of one partial
result for each program, always in the same order, without atomics: the same input gives the same
bits. A tensor is rows, one for each pixel, in tiles of rows: program p of P takes the tiles p,
p + P, p + 2P …, and loads a few of them in advance.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import InputError
from ..models.blocks import ConvBlock
from .kernels import check, in_rows, kernel, tile_shape, tl, triton

_PROGRAMS = 512  # about four for each multiprocessor of a large GPU
_TILE = 4096  # elements: 16 for each thread, two 16-byte accesses in half precision
_WARPS = 8
_MERGED = tl.constexpr(16)  # channels of a program that merges partial results
_STAGES = tl.constexpr(3)  # tiles that are loaded at a time


@triton.jit
def _merge(count, mean, squares):
    """Merge groups along axis 0: sizes, means and sums of squared deviations (Chan et al.)."""
    total = tl.maximum(tl.sum(count, 0), 1.0)  # columns after the last channel are empty
    joint = tl.sum(count * mean, 0) / total
    deviation = mean - joint[None, :]
    return total, joint, tl.sum(squares + count * deviation * deviation, 0)


@triton.jit
def put_moments(partial, count, mean, squares, program, num_programs, column, channels):
    """Merge the places of a tile, and store them as those of a program: `partial` (3, P, C)."""
    total, joint, deviations = _merge(count, mean, squares)
    place = partial + program * channels + column
    plane = num_programs * channels
    tl.store(place, (total + tl.zeros_like(joint))[None, :], column < channels)
    tl.store(place + plane, joint[None, :], column < channels)
    tl.store(place + 2 * plane, deviations[None, :], column < channels)


@triton.jit
def put_sums(partial, plain, weighted, program, num_programs, column, channels):
    """Add the places of a tile, and store them as those of a program: `partial` (2, P, C)."""
    place = partial + program * channels + column
    tl.store(place, tl.sum(plain, 0)[None, :], column < channels)
    place += num_programs * channels
    tl.store(place, tl.sum(weighted, 0)[None, :], column < channels)


@kernel()
def _moments(x, partial, num_rows, channels, rows: tl.constexpr, columns: tl.constexpr):
    """Size, mean and squared deviations of every `num_programs`-th tile: `partial` (3, P, C)."""
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    mean = tl.zeros((rows, columns), tl.float32)
    squares = tl.zeros((rows, columns), tl.float32)
    count = tl.zeros((rows, 1), tl.float32)
    steps = 0.0
    for step in tl.range(tl.cdiv(num_rows, rows * num_programs), num_stages=_STAGES):
        first = (step * num_programs + program) * rows
        inside = first + row < num_rows
        mask = inside & (column < channels)
        value = tl.load(x + first * channels + row * channels + column, mask, 0.0).to(tl.float32)
        # Welford's update, one running mean per place in the tile; only the last step of a
        # place can be outside, so that `steps` is the size of every group that still grows
        steps += 1.0
        delta = tl.where(inside, value - mean, 0.0)
        mean += delta * (1.0 / steps)
        squares += delta * (value - mean)
        count += inside.to(tl.float32)
    put_moments(partial, count, mean, squares, program, num_programs, column, channels)


@kernel()
def _merge_moments(
    partial,
    statistics,
    running_mean,
    running_variance,
    batches,
    num_partials,
    channels,
    momentum,
    eps,
    groups: tl.constexpr,
):
    """Merge `partial` into `statistics` (2, C): mean, 1/deviation; update the running ones."""
    group = tl.arange(0, groups)[:, None]
    column = tl.program_id(0) * _MERGED + tl.arange(0, _MERGED)
    place = partial + group * channels + column[None, :]
    mask = (group < num_partials) & (column[None, :] < channels)
    plane = num_partials * channels
    total, mean, squares = _merge(
        tl.load(place, mask, 0.0),
        tl.load(place + plane, mask, 0.0),
        tl.load(place + 2 * plane, mask, 0.0),
    )
    mask = column < channels
    tl.store(statistics + column, mean, mask)
    tl.store(statistics + channels + column, 1.0 / tl.sqrt(squares / total + eps), mask)
    old_mean = tl.load(running_mean + column, mask)
    old_variance = tl.load(running_variance + column, mask)
    variance = squares / tl.maximum(total - 1.0, 1.0)
    tl.store(running_mean + column, old_mean + momentum * (mean - old_mean), mask)
    tl.store(running_variance + column, old_variance + momentum * (variance - old_variance), mask)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def parameters(statistics, weight, bias, column, channels):
    """Mean, factor and shift of the normalisation (x - mean)·factor + shift."""
    mask = column < channels
    mean = tl.load(statistics + column, mask, 0.0)
    inverse = tl.load(statistics + channels + column, mask, 0.0)
    factor = inverse * tl.load(weight + column, mask, 0.0)
    shift = tl.load(bias + column, mask, 0.0)
    return mean, factor, shift


@triton.jit
def averages(sums, statistics, column, channels, num_rows):
    """The mean of the gradient, and the slope of its fit to the input: both do not reach it."""
    mask = column < channels
    plain = tl.load(sums + column, mask, 0.0) / num_rows
    inverse = tl.load(statistics + channels + column, mask, 0.0)
    return plain, tl.load(sums + channels + column, mask, 0.0) * inverse / num_rows


@triton.jit
def relu(value):
    """Keeps NaN, as torch's does."""
    return tl.where(value < 0.0, 0.0, value)


@triton.jit
def before_relu(value, gradient, mean, factor, shift):
    """Input minus mean, and the gradient before the ReLU."""
    centred = value - mean
    dead = centred * factor + shift <= 0.0
    return centred, tl.where(dead, 0.0, gradient.to(tl.float32))


@kernel()
def _normalize(
    x, y, statistics, weight, bias, num_rows, channels, rows: tl.constexpr, columns: tl.constexpr
):
    """The normalised input after the ReLU: `y`, like `x`."""
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    mean, factor, shift = parameters(statistics, weight, bias, column, channels)
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for step in tl.range(tl.cdiv(num_rows, rows * num_programs), num_stages=_STAGES):
        first = (step * num_programs + program) * rows
        mask = (first + row < num_rows) & (column < channels)
        place = first * channels + row * channels + column
        value = tl.load(x + place, mask, 0.0).to(tl.float32)
        result = relu((value - mean) * factor + shift)
        tl.store(y + place, result.to(y.dtype.element_ty), mask)


@kernel()
def _gradients(
    x,
    gradient,
    result,
    partial,
    sums,
    statistics,
    weight,
    bias,
    num_rows,
    channels,
    stride,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Sums of the gradient and of gradient·centred over this program's tiles: `partial` (2, P, C).

    And, or instead, the gradient of the input: `result`, like `x`. Statistics of the batch depend
    on the input, which takes the `sums` (2, C) over all tiles.
    """
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    mean, factor, shift = parameters(statistics, weight, bias, column, channels)
    plain = tl.zeros((rows, columns), tl.float32)
    weighted = tl.zeros((rows, columns), tl.float32)
    if sums is not None:
        average, slope = averages(sums, statistics, column, channels, num_rows)
    for step in tl.range(tl.cdiv(num_rows, rows * num_programs), num_stages=_STAGES):
        first = (step * num_programs + program) * rows
        mask = (first + row < num_rows) & (column < channels)
        value = tl.load(x + first * channels + row * channels + column, mask, 0.0).to(tl.float32)
        incoming = tl.load(gradient + first * stride + row * stride + column, mask, 0.0)
        centred, passed = before_relu(value, incoming, mean, factor, shift)
        if partial is not None:
            plain += passed
            weighted += passed * centred
        if result is not None:
            if sums is not None:
                passed -= average + centred * slope
            target = result + first * channels + row * channels + column
            tl.store(target, (passed * factor).to(result.dtype.element_ty), mask)
    if partial is not None:
        put_sums(partial, plain, weighted, program, num_programs, column, channels)


@kernel()
def _parameter_gradients(partial, sums, statistics, num_partials, channels, groups: tl.constexpr):
    """(2, P, C) -> `sums` (2, C): the gradients of bias and weight."""
    group = tl.arange(0, groups)[:, None]
    column = tl.program_id(0) * _MERGED + tl.arange(0, _MERGED)
    place = partial + (tl.program_id(1) * num_partials + group) * channels + column[None, :]
    mask = (group < num_partials) & (column[None, :] < channels)
    total = tl.sum(tl.load(place, mask, 0.0), 0)
    if tl.program_id(1) == 1:
        total *= tl.load(statistics + channels + column, column < channels, 0.0)
    tl.store(sums + tl.program_id(1) * channels + column, total, column < channels)


class _Tiles:
    """How a (B, C, H, W) tensor is divided: tiles of rows; a row is all channels of a pixel."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.num_rows = x.numel() // self.channels
        self.shape = {**tile_shape(self.channels, _TILE), "num_warps": _WARPS}
        self.programs = min(triton.cdiv(self.num_rows, self.shape["rows"]), _PROGRAMS)


def merge_moments(partial: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """(3, P, C) -> mean and 1/deviation of each channel, (2, C); the running ones are updated."""
    _, programs, channels = partial.shape
    statistics = partial.new_empty(2, channels)
    known = (programs, channels, norm.momentum, norm.eps)
    _merge_moments[(triton.cdiv(channels, _MERGED.value),)](
        partial, statistics, *norm.buffers(), *known, groups=_PROGRAMS, num_warps=_WARPS
    )
    return statistics


def frozen_statistics(norm: nn.BatchNorm2d) -> Tensor:
    """The running mean and 1/deviation of each channel: (2, C)."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return torch.stack([norm.running_mean, (norm.running_var + norm.eps).rsqrt()])


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        tiles, y = _Tiles(x), torch.empty_like(x)
        size = (tiles.num_rows, tiles.channels)
        if norm.training:
            partial = x.new_empty(3, tiles.programs, tiles.channels, dtype=torch.float32)
            _moments[(tiles.programs,)](x, partial, *size, **tiles.shape)
            statistics = merge_moments(partial, norm)
        else:
            statistics = frozen_statistics(norm)
        _normalize[(tiles.programs,)](x, y, statistics, weight, bias, *size, **tiles.shape)
        ctx.save_for_backward(x, statistics, weight, bias)
        ctx.frozen = not norm.training
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *known = ctx.saved_tensors
        gradient, stride = in_rows(gradient)
        tiles, result = _Tiles(x), torch.empty_like(x)
        known += [tiles.num_rows, tiles.channels, stride]
        partial = x.new_empty(2, tiles.programs, tiles.channels, dtype=torch.float32)
        sums = torch.empty_like(partial[:, 0])  # the gradients of bias and weight
        grid = (tiles.programs,)
        at_once = result if ctx.frozen else None
        _gradients[grid](x, gradient, at_once, partial, None, *known, **tiles.shape)
        _parameter_gradients[(triton.cdiv(tiles.channels, _MERGED.value), 2)](
            partial, sums, known[0], *partial.shape[1:], groups=_PROGRAMS, num_warps=_WARPS
        )
        if not ctx.frozen:
            _gradients[grid](x, gradient, result, None, sums, *known, **tiles.shape)
        return result, sums[1], sums[0], None


def norm_relu(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """relu(norm(x)) in the precision of `x`: (B, C, H, W), channels last."""
    check(x)
    if norm.training and x.numel() == x.shape[1]:
        raise InputError(f"batch norm needs more than one pixel to train on, got {tuple(x.shape)}")
    return _NormRelu.apply(x, norm.weight, norm.bias, norm)


class AcceleratedConvBlock(ConvBlock):
    """A `ConvBlock` with norm and ReLU in one kernel; synchronised norms are as in `ConvBlock`."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'), channels last."""
        return self.finish(self.conv(x))

    def finish(self, x: Tensor) -> Tensor:
        """Norm and ReLU of what the convolution gives."""
        norm = self.fused_norm()
        return torch.relu(self.bn(x)) if norm is None else norm_relu(x, norm)

    def fused_norm(self) -> nn.BatchNorm2d | None:
        """The norm, if the kernels know it."""
        return self.bn if type(self.bn) is nn.BatchNorm2d else None
