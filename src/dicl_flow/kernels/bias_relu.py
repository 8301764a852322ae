"""Bias and ReLU in place, for what a convolution has just written."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import check

_TILE, _WARPS = 4096, 8  # elements: 16 to a thread


@triton.jit(do_not_specialize=["num_rows"])
def _bias_relu(
    x, bias, num_rows, channels: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    column = tl.arange(0, columns)[None, :]
    mask = (row < num_rows) & (column < channels)
    place = x + row * channels + column
    value = tl.load(place, mask, 0.0).to(tl.float32)
    value += tl.load(bias + column, column < channels, 0.0)
    tl.store(place, tl.maximum(value, 0.0).to(x.dtype.element_ty), mask)


def bias_relu_(x: Tensor, bias: Tensor) -> Tensor:
    """Turn (B, C, H, W), channels last, into relu(x + bias), and return it."""
    check(x)
    channels = x.shape[1]
    columns = triton.next_power_of_2(channels)
    rows, num_rows = max(_TILE // columns, 1), x.numel() // channels
    with torch.cuda.device_of(x):
        _bias_relu[(triton.cdiv(num_rows, rows),)](
            x, bias, num_rows, channels=channels, columns=columns, rows=rows, num_warps=_WARPS
        )
    return x
