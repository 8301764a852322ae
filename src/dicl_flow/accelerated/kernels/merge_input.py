"""Two maps concatenated, the first after a ReLU, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel
from .layout import check

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
    tl.store(target, tl.maximum(value, 0.0), there)
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
    num_rows, columns = batch * height * width, triton.next_power_of_2(channels)
    rows = max(_TILE // columns, 1)
    with torch.cuda.device_of(result):
        _merge_input[(triton.cdiv(num_rows, rows),)](
            first, second, result, num_rows, channels=channels, columns=columns, rows=rows
        )
    return result
