"""The same merge with a gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...models.pyramid import Merge
from ..kernels import in_rows, kernel, tl
from .cuda import merge_input, tiles


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
    """A run of pixels: the gradient of the first map; those of `gradient` are `stride` apart."""
    pixel = (tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows))[:, None]
    column = tl.arange(0, columns)[None, :]
    there = (pixel < num_rows) & (column < channels)
    value = tl.load(merged + pixel * (2 * channels) + column, there, 0.0)
    incoming = tl.load(gradient + pixel * stride + column, there, 0.0)
    passed = tl.where(value.to(tl.float32) <= 0, 0.0, incoming).to(result.dtype.element_ty)
    tl.store(result + pixel * channels + column, passed, there)


class _MergeInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        merged = merge_input(first, second)
        ctx.save_for_backward(merged)
        return merged

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (merged,) = ctx.saved_tensors
        gradient, stride = in_rows(gradient)
        first, second = gradient.chunk(2, 1)
        result = torch.empty_like(first, memory_format=torch.channels_last)
        grid, shape = tiles(result)
        num_rows = result.numel() // result.shape[1]
        _relu_gradient[grid](merged, gradient, result, num_rows, stride, **shape)
        return result, second


def trainable_merge_input(first: Tensor, second: Tensor) -> Tensor:
    """The same with a gradient; that of `second` is a slice of that of the result."""
    return _MergeInput.apply(first, second)


class AcceleratedMerge(Merge):
    """A `Merge` whose ReLU and concatenation are one kernel."""

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        fused: Tensor = self.fuse(trainable_merge_input(self.resample.conv(neighbour), skip))
        return fused
