"""The input of a context net, assembled in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel
from .layout import check

_ROWS, _WARPS = 64, 4


@kernel(do_not_specialize=["size", "num_rows"])
def _context_input(
    flow,
    entropy,
    features,
    image,
    result,
    size,
    num_rows,
    depth: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels: flow, entropy, features, image, and the rounding error of the flow."""
    width: tl.constexpr = depth + 8
    pixel = (tl.program_id(0) * rows + tl.arange(0, rows)).to(tl.int64)[:, None]
    there = pixel < num_rows
    number, place = pixel // size, pixel % size
    column = tl.arange(0, columns)[None, :]
    lost = column >= depth + 6
    axis = tl.where(lost, column - depth - 6, column)
    moves = there & (axis < 2) & (column < width)
    value = tl.load(flow + (number * 2 + axis) * size + place, moves, 0.0)
    rounded = value.to(result.dtype.element_ty)
    value = tl.where(lost, value - rounded.to(tl.float32), value)
    value += tl.load(entropy + pixel + column * 0, there & (column == 2), 0.0)
    colour = column - depth - 3
    coloured = there & (colour >= 0) & (colour < 3)
    value += tl.load(image + (number * 3 + colour) * size + place, coloured, 0.0)
    described = there & (column >= 3) & (column < depth + 3)
    value += tl.load(features + pixel * depth + column - 3, described, 0.0)
    target = result + pixel * width + column
    tl.store(target, value.to(result.dtype.element_ty), there & (column < width))


def context_input(flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
    """(B, 2|1|C|3, H, W) -> (B, 2 + 1 + C + 3 + 2, H, W) as `features`, channels last."""
    check(features)
    batch, depth, height, width = features.shape
    result = torch.empty(
        (batch, depth + 8, height, width),
        dtype=features.dtype,
        device=features.device,
        memory_format=torch.channels_last,
    )
    num_rows = batch * height * width
    with torch.cuda.device_of(result):
        _context_input[(triton.cdiv(num_rows, _ROWS),)](
            flow.contiguous(),
            entropy.contiguous(),
            features,
            image.contiguous(),
            result,
            height * width,
            num_rows,
            depth=depth,
            columns=triton.next_power_of_2(depth + 8),
            rows=_ROWS,
            num_warps=_WARPS,
        )
    return result
