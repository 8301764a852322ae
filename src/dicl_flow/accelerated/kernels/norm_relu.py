"""Batch norm with the statistics of the batch, and ReLU, for channels-last tensors.

Forward reads the input twice and writes once; backward reads input and gradient twice and
writes once. Only the input is kept: the mask of the ReLU is computed from it again.
Sums are made of one partial result for each program, always in the same order, without atomics:
the same input gives the same bits.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import InputError
from . import norm_tiles as kernels
from .layout import check, in_rows

_PROGRAMS = 512  # about four for each multiprocessor of a large GPU
_TILE = 4096  # elements: 16 for each thread, two 16-byte accesses in half precision
_WARPS = 8
_MERGED = 16  # channels of a program that merges partial results


def _merging() -> dict[str, int]:
    return {"groups": _PROGRAMS, "columns": _MERGED, "num_warps": _WARPS}


class _Tiles:
    """How a (B, C, H, W) tensor is divided: tiles of rows; a row is all channels of a pixel."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.num_rows = x.numel() // self.channels
        columns = triton.next_power_of_2(self.channels)
        rows = max(_TILE // columns, 1)
        self.programs = min(triton.cdiv(self.num_rows, rows), _PROGRAMS)
        self.shape = {"rows": rows, "columns": columns, "num_warps": _WARPS}

    def empty(self, *shape: int, like: Tensor) -> Tensor:
        """Float32 values for each channel: (*shape, C)."""
        return like.new_empty(*shape, self.channels, dtype=torch.float32)


def merge_moments(
    partial: Tensor, running: tuple[Tensor, Tensor, Tensor], momentum: float, eps: float
) -> Tensor:
    """(3, P, C) -> mean and 1/deviation of each channel, (2, C); the running ones are updated."""
    _, programs, channels = partial.shape
    statistics = partial.new_empty(2, channels)
    known = (programs, channels, momentum, eps)
    kernels.merge_moments[(triton.cdiv(channels, _MERGED),)](
        partial, statistics, *running, *known, **_merging()
    )
    return statistics


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor, Tensor],
        momentum: float,
        eps: float,
    ) -> Tensor:
        tiles, y = _Tiles(x), torch.empty_like(x)
        size = (tiles.num_rows, tiles.channels)
        partial = tiles.empty(3, tiles.programs, like=x)
        with torch.cuda.device_of(x):
            kernels.moments[(tiles.programs,)](x, partial, *size, **tiles.shape)
            statistics = merge_moments(partial, running, momentum, eps)
            kernels.normalize[(tiles.programs,)](
                x, y, statistics, weight, bias, *size, **tiles.shape
            )
        ctx.save_for_backward(x, statistics, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, weight, bias = ctx.saved_tensors
        gradient, stride = in_rows(gradient)
        tiles, result = _Tiles(x), torch.empty_like(x)
        known = (statistics, weight, bias, tiles.num_rows, tiles.channels, stride)
        partial = tiles.empty(2, tiles.programs, like=x)
        sums = tiles.empty(2, like=x)  # the gradients of bias and weight
        with torch.cuda.device_of(x):
            kernels.gradient_sums[(tiles.programs,)](x, gradient, partial, *known, **tiles.shape)
            kernels.parameter_gradients[(triton.cdiv(tiles.channels, _MERGED), 2)](
                partial, sums, statistics, tiles.programs, tiles.channels, **_merging()
            )
            kernels.input_gradient[(tiles.programs,)](
                x, gradient, result, sums, *known, **tiles.shape
            )
        return result, sums[1], sums[0], None, None, None


def norm_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    num_batches_tracked: Tensor,
    momentum: float,
    eps: float,
) -> Tensor:
    """relu(batch_norm(x)) in training mode, in the precision of `x`: (B, C, H, W), channels last.

    The three running tensors change in place, as `nn.BatchNorm2d` changes them.
    """
    check(x)
    if x.numel() == x.shape[1]:
        raise InputError(f"batch norm needs more than one pixel to train on, got {tuple(x.shape)}")
    running = (running_mean, running_variance, num_batches_tracked)
    return _NormRelu.apply(x, weight, bias, running, momentum, eps)
