"""Two maps concatenated, the first after a ReLU, in one pass; for training, with its gradient."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .launching import kernel
from .layout import check, in_rows

_TILE = 2048  # numbers of either map that a program copies


@kernel(do_not_specialize=["num_rows"])
def _merge_input(
    first,
    second,
    result,
    num_rows,
    channels: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels."""
    pixel = (tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows))[:, None]
    column = tl.arange(0, columns)[None, :]
    there = (pixel < num_rows) & (column < channels)
    source, target = pixel * channels + column, result + pixel * (2 * channels) + column
    value, other = tl.load(first + source, there, 0.0), tl.load(second + source, there, 0.0)
    value = tl.where(value.to(tl.float32) < 0, 0.0, value)  # lets NaN through
    tl.store(target, value.to(result.dtype.element_ty), there)
    tl.store(target + channels, other, there)


def merge_input(first: Tensor, second: Tensor) -> Tensor:
    """cat([relu(first), second]): two (B, C, H, W) -> (B, 2C, H, W), channels last."""
    check(first)
    check(second)
    batch, channels, height, width = first.shape
    result = torch.empty(
        (batch, 2 * channels, height, width),
        dtype=first.dtype,
        device=first.device,
        memory_format=torch.channels_last,
    )
    grid, shape = _tiles(first)
    with torch.cuda.device_of(result):
        _merge_input[grid](first, second, result, batch * height * width, **shape)
    return result


@kernel(do_not_specialize=["num_rows"])
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
    given = tl.load(gradient + pixel * stride + column, there, 0.0)
    given = tl.where(value.to(tl.float32) <= 0, 0.0, given).to(result.dtype.element_ty)
    tl.store(result + pixel * channels + column, given, there)


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
        grid, shape = _tiles(result)
        num_rows = result.numel() // result.shape[1]
        with torch.cuda.device_of(result):
            _relu_gradient[grid](merged, gradient, result, num_rows, stride, **shape)
        return result, second


def trainable_merge_input(first: Tensor, second: Tensor) -> Tensor:
    """The same with a gradient; that of `second` is a slice of the one given."""
    return _MergeInput.apply(first, second)


def _tiles(first: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """How many runs of pixels there are, and their shape."""
    channels = first.shape[1]
    columns = triton.next_power_of_2(channels)
    rows = max(_TILE // columns, 1)
    shape = {"channels": channels, "columns": columns, "rows": rows}
    return (triton.cdiv(first.numel() // channels, rows),), shape
