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

_ROWS, _WARPS, _STAGES = 128, 4, 1
_PROGRAMS = 264  # what a large GPU can hold at once: each keeps the weights for all of its tiles


@triton.jit
def _coarse(x, inner, known, i, j, source, height, width, depth: tl.constexpr, tap):
    """One of the four coarse pixels around each corner, zero outside the image."""
    row, column = tap // 2 - 1, tap % 2 - 1
    inside = (i + row >= 0) & (i + row < height) & (j + column >= 0) & (j + column < width)
    place = (source + row * width + column).to(tl.int64) * depth
    return tl.load(x + place[:, None] + inner[None, :], (known & inside)[:, None], 0.0)


@kernel(do_not_specialize=["items", "height", "width"])
def _score_patches(
    x,
    up,
    bias,
    last,
    patches,
    items,
    height,
    width,
    depth: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
    keeps: tl.constexpr,
    stages: tl.constexpr,
):
    """Every `num_programs`-th run of corners; `columns` are four pixels' channels.

    A program `keeps` the weights of the transposed layer, or reads them for each run.
    """
    column, inner, place = tl.arange(0, columns), tl.arange(0, depth), tl.arange(0, 16)
    is_lower = ((column & (columns // 2)) != 0)[None, :]
    is_right = ((column & (columns // 4)) != 0)[None, :]
    shift = tl.load(bias + column).to(tl.float32)[None, :]
    adds = tl.load(last + column[:, None] * 16 + place[None, :])
    weights = up + column[None, :] * depth + inner[:, None]
    step: tl.constexpr = columns * depth
    if keeps:
        weight0, weight1 = tl.load(weights), tl.load(weights + step)
        weight2, weight3 = tl.load(weights + 2 * step), tl.load(weights + 3 * step)
    most = 65504.0 if adds.dtype == tl.float16 else float("inf")  # the largest of all numbers
    count = items * (height + 1) * (width + 1)
    runs = tl.cdiv(count, rows)
    for run in tl.range(tl.program_id(0), runs, tl.num_programs(0), num_stages=stages):
        corner = run * rows + tl.arange(0, rows)
        known, line = corner < count, corner // (width + 1)
        item = line // (height + 1)
        i, j = line - item * (height + 1), corner - line * (width + 1)
        source = (item * height + i) * width + j
        if keeps:
            given = _coarse(x, inner, known, i, j, source, height, width, depth, 0)
            value = tl.dot(given, weight0)
            given = _coarse(x, inner, known, i, j, source, height, width, depth, 1)
            value = tl.dot(given, weight1, value)
            given = _coarse(x, inner, known, i, j, source, height, width, depth, 2)
            value = tl.dot(given, weight2, value)
            given = _coarse(x, inner, known, i, j, source, height, width, depth, 3)
            value = tl.dot(given, weight3, value)
        else:
            value = tl.zeros((rows, columns), tl.float32)
            for tap in range(4):
                given = _coarse(x, inner, known, i, j, source, height, width, depth, tap)
                weight = tl.load(weights + tap * step)
                value = tl.dot(given, weight, value, input_precision="tf32x3")
        # pixels outside the image are zero: no number is above `limit`
        top, bottom = tl.where(i > 0, most, 0.0), tl.where(i < height, most, 0.0)
        left, right = tl.where(j > 0, most, 0.0), tl.where(j < width, most, 0.0)
        limit = tl.minimum(
            tl.where(is_lower, bottom[:, None], top[:, None]),
            tl.where(is_right, right[:, None], left[:, None]),
        )
        value = tl.minimum(tl.maximum(value + shift, 0.0), limit)
        value = tl.dot(value.to(adds.dtype), adds, input_precision="tf32x3")
        target = ((line * 4)[:, None] + (place // 4)[None, :]).to(tl.int64) * (width + 1)
        target = (target + j[:, None]) * 4 + (place % 4)[None, :]
        tl.store(patches + target, value.to(patches.dtype.element_ty), known[:, None])


def score_patches(x: Tensor, up: Tensor, bias: Tensor, last: Tensor, patches: Tensor) -> None:
    """Write what the four pixels around each corner add to the scores, as `readout` reads it.

    `x` is (N, in, H/2, W/2), channels last, `patches` (N, H/2 + 1, 4, W/2 + 1, 4); `up`
    (4, 4·out, in) and `bias` (4·out,) are the transposed layer, `last` (4·out, 4·4) the last one.
    """
    check(x)
    items, depth, height, width = x.shape
    rows, warps = (32, 8) if x.dtype == torch.float32 else (_ROWS, _WARPS)
    runs = triton.cdiv(items * (height + 1) * (width + 1), rows)
    keeps = _keeps(x)
    with torch.cuda.device_of(x):
        _score_patches[(min(runs, _PROGRAMS) if keeps else runs,)](
            x,
            up,
            bias,
            last,
            patches,
            items,
            height,
            width,
            depth=depth,
            columns=len(bias),
            rows=rows,
            keeps=keeps,
            stages=_STAGES,
            num_warps=warps,
            num_stages=2 if x.dtype == torch.float32 else 3,
        )


def _keeps(x: Tensor) -> bool:
    """Whether the device multiplies from shared memory: elsewhere weights would fill registers."""
    multiplies = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] in (9, 10)
    return multiplies and x.dtype != torch.float32
