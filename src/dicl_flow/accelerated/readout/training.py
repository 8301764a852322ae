"""From scores to displacement and entropy in training: projection, softmax, expectation.

Forward is one pass over the scores. Backward, one kernel computes the softmax again, writes the
gradient of the scores and adds up that of the projection: one partial sum for each program, always
in the same order.
"""

from math import isqrt, log
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...models.dicl import DiclLevel
from ...models.matching import DisplacementProjection
from ..kernels import kernel, product_side, tl, triton
from .cuda import displacements, expectation, exponentials

MOST_DISPLACEMENTS = 64  # more would not fit into registers and shared memory
_ROWS = 64  # pixels of a tile
_PROGRAMS = 264  # two for each multiprocessor of a large GPU


@triton.jit
def _softmax(value, known):
    """Probabilities of the displacements, and their logarithms."""
    value, power = exponentials(value, known)
    total = tl.sum(power, 1)[:, None]
    return power / total, value - tl.log(total)


@kernel("size")
def _forward(
    scores,
    weight,
    projected,
    displacement,
    entropy,
    pixels,
    size,
    scale: tl.constexpr,
    side: tl.constexpr,
    hypotheses: tl.constexpr,
    rows: tl.constexpr,
):
    """A tile of pixels; scores are (U·V, pixels), the displacement is (B, 2, `size`)."""
    count: tl.constexpr = side * side
    pixel, index = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, hypotheses)
    there, known = pixel < pixels, (index < count)[None, :]
    mask = there[:, None] & known
    place = pixel[:, None] + index[None, :] * pixels
    value = tl.load(scores + place, mask, 0.0)
    if weight is not None:
        turned = weight + index[None, :] * count + index[:, None]
        factor = tl.load(turned, (index < count)[:, None] & known, 0.0)
        value = tl.dot(value, factor, input_precision="ieee").to(scores.dtype.element_ty)
        tl.store(projected + place, value, mask)
    probability, logarithm = _softmax(value.to(tl.float32), known)
    x, y = expectation(probability, index, side)
    target = displacement + pixel + pixel // size * size
    tl.store(target, x, there)
    tl.store(target + size, y, there)
    tl.store(entropy + pixel, -scale * tl.sum(probability * logarithm, 1), there)


@kernel("size")
def _backward(
    scores,
    weight,
    projected,
    gradient,
    entropy_gradient,
    score_gradient,
    result,
    partial,
    pixels,
    size,
    scale: tl.constexpr,
    side: tl.constexpr,
    hypotheses: tl.constexpr,
    rows: tl.constexpr,
):
    """Every `num_programs`-th tile; `partial` (P, U·V, U·V) is of the weight."""
    count: tl.constexpr = side * side
    index = tl.arange(0, hypotheses)
    known = (index < count)[None, :]
    square = index[:, None] * count + index[None, :]
    both = (index < count)[:, None] & known
    u, v = displacements(index, side)
    total = tl.zeros((hypotheses, hypotheses), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, rows), tl.num_programs(0)):
        pixel = tile * rows + tl.arange(0, rows)
        there = pixel < pixels
        mask = there[:, None] & known
        place = pixel[:, None] + index[None, :] * pixels
        probability, logarithm = _softmax(
            tl.load(projected + place, mask, 0.0).to(tl.float32), known
        )
        source = gradient + pixel + pixel // size * size
        slope = u * tl.load(source, there, 0.0)[:, None]
        slope += v * tl.load(source + size, there, 0.0)[:, None]
        if entropy_gradient is not None:
            slope -= scale * logarithm * tl.load(entropy_gradient + pixel, there, 0.0)[:, None]
        slope = probability * (slope - tl.sum(probability * slope, 1)[:, None])
        if score_gradient is not None:
            slope += tl.load(score_gradient + place, mask, 0.0).to(tl.float32)
        slope = slope.to(scores.dtype.element_ty)
        if weight is not None:
            value = tl.load(scores + place, mask, 0.0)
            total = tl.dot(tl.trans(slope), value, total, input_precision="ieee")
            factor = tl.load(weight + square, both, 0.0)
            slope = tl.dot(slope, factor, input_precision="ieee").to(scores.dtype.element_ty)
        tl.store(result + place, slope, mask)
    if weight is not None:
        tl.store(partial + tl.program_id(0) * count * count + square, total, both)


class _Readout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, weight: Tensor | None, size: tuple[int, int, int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        batch, height, width = size
        taps = None if weight is None else weight.to(scores.dtype).flatten(1).contiguous()
        projected = None if weight is None else torch.empty_like(scores)
        displacement = scores.new_empty((batch, 2, height, width), dtype=torch.float32)
        entropy = scores.new_empty((batch, 1, height, width), dtype=torch.float32)
        ctx.known, ctx.shape = (scores.shape[1], height * width), _shape(len(scores))
        _forward[(triton.cdiv(scores.shape[1], _ROWS),)](
            scores, taps, projected, displacement, entropy, *ctx.known, **ctx.shape
        )
        ctx.save_for_backward(scores, taps, projected)
        ctx.set_materialize_grads(False)
        return displacement, entropy, projected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        scores, taps, projected = ctx.saved_tensors
        pixels = ctx.known[0]
        gradient, *others = (None if g is None else g.contiguous() for g in gradients)
        if gradient is None:
            gradient = scores.new_zeros((2 * pixels,), dtype=torch.float32)
        programs = min(triton.cdiv(pixels, _ROWS), _PROGRAMS)
        count, result = len(scores), torch.empty_like(scores)
        partial = scores.new_empty((programs, count, count), dtype=torch.float32)
        read = scores if projected is None else projected
        _backward[(programs,)](
            scores, taps, read, gradient, *others, result, partial, *ctx.known, **ctx.shape
        )
        return result, None if taps is None else partial.sum(0)[:, :, None, None], None


def _shape(count: int) -> dict[str, Any]:
    constants = {"scale": 1 / log(count), "side": isqrt(count), "rows": _ROWS}
    return {**constants, "hypotheses": product_side(count)}


def trained_readout(scores: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Projected scores (B, U, V, H, W), displacement (B, 2, H, W), entropy (B, 1, H, W).

    `weight` of the projection is (U·V, U·V, 1, 1); None: scores are not projected.
    """
    batch, side, _, height, width = scores.shape
    # in memory, the matching net's scores are so already
    flat = scores.permute(1, 2, 0, 3, 4).reshape(side * side, -1).contiguous()
    displacement, entropy, projected = _Readout.apply(flat, weight, (batch, height, width))
    if projected is not None:
        projected = projected.reshape(side, side, batch, height, width)
        scores = projected.permute(2, 0, 1, 3, 4)
    return scores, displacement, entropy


class AcceleratedDiclLevel(DiclLevel):
    """A `DiclLevel` that projects its scores and reads the flow off them in one kernel."""

    def read_off(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DiclLevel`."""
        projection = self.projection
        if scores.shape[1] * scores.shape[2] > MOST_DISPLACEMENTS:
            return super().read_off(scores)
        weight = projection.weight if isinstance(projection, DisplacementProjection) else None
        return trained_readout(scores, weight)
