"""Merges of the feature net: a coarser (or finer) map, resampled, joins the map of a level.

    merge(neighbour, skip) = fuse(cat([relu(resample(neighbour)), skip]))

`resample` and `fuse` are convolutions. On a CPU both are folded, and oneDNN applies the ReLU; on a
GPU, one kernel applies it while it writes both maps side by side, for inference and in training.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..models.dicl import Merge
from .folded import FoldedConv
from .kernels import check, in_rows, kernel, new_map, tile_shape, tl, triton

_TILE = 2048  # numbers of either map that a program copies


@triton.jit
def _tile(num_rows, channels: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """Of this program: its pixels, its channels, and which of both exist."""
    pixel = (tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows))[:, None]
    column = tl.arange(0, columns)[None, :]
    return pixel, column, (pixel < num_rows) & (column < channels)


@kernel("num_rows")
def _merge_input(
    first,
    second,
    result,
    num_rows,
    channels: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    pixel, column, there = _tile(num_rows, channels, rows, columns)
    source, target = pixel * channels + column, result + pixel * (2 * channels) + column
    value, other = tl.load(first + source, there, 0.0), tl.load(second + source, there, 0.0)
    value = tl.where(value.to(tl.float32) < 0, 0.0, value)  # lets NaN through
    tl.store(target, value.to(result.dtype.element_ty), there)
    tl.store(target + channels, other, there)


@kernel("num_rows")
def _relu_gradient(
    merged,
    gradient,
    result,
    num_rows,
    stride,
    channels: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """The gradient of the first map; the pixels of `gradient` are `stride` apart."""
    pixel, column, there = _tile(num_rows, channels, rows, columns)
    value = tl.load(merged + pixel * (2 * channels) + column, there, 0.0)
    incoming = tl.load(gradient + pixel * stride + column, there, 0.0)
    passed = tl.where(value.to(tl.float32) <= 0, 0.0, incoming).to(result.dtype.element_ty)
    tl.store(result + pixel * channels + column, passed, there)


def _launch(kernel: Any, like: Tensor, *maps: Tensor, **more: int) -> None:
    """Launch a kernel for all pixels of a map."""
    channels = like.shape[1]
    num_rows, shape = like.numel() // channels, tile_shape(channels, _TILE)
    grid = (triton.cdiv(num_rows, shape["rows"]),)
    kernel[grid](*maps, num_rows, channels=channels, **shape, **more)


def merge_input(first: Tensor, second: Tensor) -> Tensor:
    """cat([relu(first), second]): two (B, C, H, W) -> (B, 2C, H, W), channels last."""
    check(first)
    check(second)
    batch, channels, height, width = first.shape
    result = new_map((batch, 2 * channels, height, width), first)
    _launch(_merge_input, first, first, second, result)
    return result


class _MergeInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        merged = merge_input(first, second)
        ctx.save_for_backward(merged)
        return merged

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gradient, stride = in_rows(gradient)
        first, second = gradient.chunk(2, 1)
        result = torch.empty_like(first, memory_format=torch.channels_last)
        _launch(_relu_gradient, result, *ctx.saved_tensors, gradient, result, stride=stride)
        return result, second


def trainable_merge_input(first: Tensor, second: Tensor) -> Tensor:
    """`merge_input` with a gradient; that of `second` is a slice of that of the result."""
    return _MergeInput.apply(first, second)


class KernelMerge(Merge):
    """A folded `Merge` whose ReLU and concatenation are one kernel."""

    def __init__(self, merge: Merge) -> None:
        nn.Module.__init__(self)
        self.resample, self.fuse = merge.resample, merge.fuse
        assert isinstance(self.resample, FoldedConv)
        self.resample.relu = not self.resample.up  # cuDNN has it for free on the way down

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        return self.fuse(merge_input(self.resample(neighbour), skip))


class AcceleratedMerge(Merge):
    """The same in training."""

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        return self.fuse(trainable_merge_input(self.resample.conv(neighbour), skip))
