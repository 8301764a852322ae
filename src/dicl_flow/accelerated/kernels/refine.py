"""A flow plus its correction and the bias of that, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel
from .layout import check

_ROWS, _WARPS = 256, 4


@kernel(do_not_specialize=["size", "num_rows"])
def _refine(flow, correction, bias, result, size, num_rows, rows: tl.constexpr):
    """A run of pixels; the correction is channels last, the flow is not."""
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    there = pixel < num_rows
    target = pixel // size * 2 * size + pixel % size
    for axis in tl.static_range(2):
        value = tl.load(correction + pixel * 2 + axis, there, 0.0).to(tl.float32)
        value += tl.load(flow + target + axis * size, there, 0.0) + tl.load(bias + axis)
        tl.store(result + target + axis * size, value, there)


def refine(flow: Tensor, correction: Tensor, bias: Tensor) -> Tensor:
    """Add (B, 2, H, W) float32, (B, 2, H, W) channels last, and (2,)."""
    check(correction)
    height, width = flow.shape[-2:]
    result, num_rows = torch.empty_like(flow), len(flow) * height * width
    with torch.cuda.device_of(result):
        _refine[(triton.cdiv(num_rows, _ROWS),)](
            flow,
            correction,
            bias,
            result,
            height * width,
            num_rows,
            rows=_ROWS,
            num_warps=_WARPS,
        )
    return result
