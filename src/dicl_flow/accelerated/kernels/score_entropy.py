"""The cross-entropy of scores with the motion at four points of each cell, and its gradient.

The target of a displacement is the product of two hats around the remaining motion: bilinear
weights without a gather, and without a scatter in the gradient.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from math import isqrt
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_TILE, _WARPS = 4096, 4  # scores of a program


@triton.jit
def _hat(distance):
    return tl.maximum(1.0 - tl.abs(distance), 0.0)


@triton.jit
def _targets(rest, count, pixel, there, index, size, side: tl.constexpr):
    """The sum over four points of weight times target, and of the weights."""
    u = (index // side - side // 2).to(tl.float32)[None, :]
    v = (index % side - side // 2).to(tl.float32)[None, :]
    image, place = pixel // size, pixel % size
    target = tl.zeros((pixel.shape[0], index.shape[0]), tl.float32)
    total = tl.zeros(pixel.shape, tl.float32)
    for point in tl.static_range(4):
        source = rest + (image * 8 + point) * size + place
        x, y = tl.load(source, there, 0.0), tl.load(source + 4 * size, there, 0.0)
        weight = tl.load(count + (image * 4 + point) * size + place, there, 0.0)
        target += weight[:, None] * _hat(u - x[:, None]) * _hat(v - y[:, None])
        total += weight
    return target, total


@triton.jit(do_not_specialize=["size"])
def _entropy(
    scores,
    rest,
    count,
    sums,
    gradient,
    result,
    pixels,
    size,
    side: tl.constexpr,
    hypotheses: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels: their sum, or with a `gradient` that of their scores, (U·V, pixels)."""
    pixel, index = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, hypotheses)
    there, known = pixel < pixels, (index < side * side)[None, :]
    mask = there[:, None] & known
    place = pixel[:, None] + index[None, :] * pixels
    value = tl.load(scores + place, mask, 0.0).to(tl.float32)
    value -= tl.max(tl.where(known, value, float("-inf")), 1)[:, None]
    power = tl.where(known, tl.exp(value), 0.0)
    target, total = _targets(rest, count, pixel, there, index, size, side)
    if gradient is None:
        # targets add up to the weights: what was subtracted from the scores cancels
        entropy = total * tl.log(tl.sum(power, 1)) - tl.sum(tl.where(known, target * value, 0.0), 1)
        tl.store(sums + tl.program_id(0), tl.sum(entropy))
    else:
        slope = power * (total / tl.sum(power, 1))[:, None] - target
        slope = (slope * tl.load(gradient)).to(result.dtype.element_ty)
        tl.store(result + place, slope, mask)


class _EntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, rest: Tensor, count: Tensor) -> Tensor:
        side, hypotheses = isqrt(len(scores)), triton.next_power_of_2(len(scores))
        rows = max(_TILE // hypotheses, 1)
        pixels, size = scores.shape[1], rest.shape[-2] * rest.shape[-1]
        ctx.grid, ctx.known = (triton.cdiv(pixels, rows),), (pixels, size)
        ctx.shape = {"side": side, "hypotheses": hypotheses, "rows": rows, "num_warps": _WARPS}
        sums = scores.new_empty(ctx.grid, dtype=torch.float32)
        with torch.cuda.device_of(scores):
            _entropy[ctx.grid](scores, rest, count, sums, None, None, *ctx.known, **ctx.shape)
        ctx.save_for_backward(scores, rest, count)
        return sums.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        maps, result = ctx.saved_tensors, torch.empty_like(ctx.saved_tensors[0])
        with torch.cuda.device_of(result):
            _entropy[ctx.grid](*maps, None, gradient, result, *ctx.known, **ctx.shape)
        return result, None, None


def entropy_sum(scores: Tensor, rest: Tensor, count: Tensor) -> Tensor:
    """The sum of `count` times cross-entropy of (B, U, V, H, W) scores, at four points per cell.

    `rest` is the remaining motion (B, 2, 4, H, W) in cells, nowhere beyond the largest
    displacement, `count` (B, 4, H, W) the weight; both have no gradient.
    """
    flat = scores.permute(1, 2, 0, 3, 4).reshape(scores.shape[1] * scores.shape[2], -1)
    return _EntropySum.apply(flat.contiguous(), rest.contiguous(), count.contiguous())
