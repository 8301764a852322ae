"""The matching net's last two layers in one pass: the fine pixels stay on the chip.

The four fine pixels around a corner of the coarse ones see the same four coarse ones, so that the
transposed convolution is one product of matrices without zeros. Another one gives what these
pixels add to the scores of the 4x4 pixels around the corner; `readout` adds these patches up.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel
from .layout import check


@triton.jit
def _locate(run, items, height, width, rows: tl.constexpr):
    """Of each corner: whether it exists, its line of all lines, its row, column, lower right."""
    corner = run * rows + tl.arange(0, rows)
    line = corner // (width + 1)
    item = line // (height + 1)
    i, j = line - item * (height + 1), corner - line * (width + 1)
    known = corner < items * (height + 1) * (width + 1)
    return known, line, i, j, ((item * height + i) * width + j).to(tl.int64)


@triton.jit
def _finish(value, shift, adds, patches, run, items, height, width):
    """Bias, ReLU and last layer of a run of corners, each with the channels of four pixels."""
    rows: tl.constexpr = value.shape[0]
    columns: tl.constexpr = value.shape[1]
    known, line, i, j, _ = _locate(run, items, height, width, rows)
    # pixels outside the image are zero, and others no larger than a number can be
    most = 65504.0 if adds.dtype == tl.float16 else float("inf")
    top, bottom = tl.where(i > 0, most, 0.0), tl.where(i < height, most, 0.0)
    left, right = tl.where(j > 0, most, 0.0), tl.where(j < width, most, 0.0)
    column, place = tl.arange(0, columns)[None, :], tl.arange(0, 16)[None, :]
    limit = tl.minimum(
        tl.where((column & (columns // 2)) != 0, bottom[:, None], top[:, None]),
        tl.where((column & (columns // 4)) != 0, right[:, None], left[:, None]),
    )
    value = tl.minimum(tl.maximum(value + shift, 0.0), limit)
    value = tl.dot(value.to(adds.dtype), adds, input_precision="tf32x3")
    target = (line[:, None] * 4 + place // 4).to(tl.int64) * (width + 1) + j[:, None]
    value = value.to(patches.dtype.element_ty)
    tl.store(patches + target * 4 + place % 4, value, known[:, None])


@kernel(do_not_specialize=["items", "height", "width"])
def _patches(
    x,
    up,
    bias,
    last,
    patches,
    items,
    height,
    width,
    depth: tl.constexpr,
    inner_columns: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of corners."""
    run, column, inner = tl.program_id(0), tl.arange(0, columns), tl.arange(0, inner_columns)
    known, _, i, j, source = _locate(run, items, height, width, rows)
    value = tl.zeros((rows, columns), tl.float32)
    for tap in range(4):
        down, across = tap // 2 - 1, tap % 2 - 1
        in_rows = (i + down >= 0) & (i + down < height)
        inside = known & in_rows & (j + across >= 0) & (j + across < width)
        place = (source + down * width + across)[:, None] * depth + inner[None, :]
        given = tl.load(x + place, inside[:, None] & (inner < depth)[None, :], 0.0)
        weight = tl.load(up + (tap * columns + column[None, :]) * inner_columns + inner[:, None])
        value = tl.dot(given, weight, value, input_precision="tf32x3")
    shift = tl.load(bias + column)[None, :]
    adds = tl.load(last + column[:, None] * 16 + tl.arange(0, 16)[None, :])
    _finish(value, shift, adds, patches, run, items, height, width)


def score_patches(x: Tensor, up: Tensor, bias: Tensor, last: Tensor, patches: Tensor) -> None:
    """Write what the four pixels around each corner add to the scores, as `readout` reads it.

    `x` is (N, in, H/2, W/2), channels last, `patches` (N, H/2 + 1, 4, W/2 + 1, 4); `up`
    (4, 4·out, in) and `bias` (4·out,) are the transposed layer, `last` (4·out, 4·4) the last one,
    all with channels of zeros up to a power of two.
    """
    check(x)
    items, depth, height, width = x.shape
    arguments = (x, up, bias, last, patches, items, height, width)
    widths = {"depth": depth, "inner_columns": up.shape[2], "columns": len(bias)}
    corners = items * (height + 1) * (width + 1)
    rows, warps, stages = (32, 8, 2) if x.dtype == torch.float32 else (128, 4, 3)
    tuned = {"rows": rows, "num_warps": warps, "num_stages": stages}
    with torch.cuda.device_of(x):
        _patches[(triton.cdiv(corners, rows),)](*arguments, **widths, **tuned)
