"""The readout: from the scores of all displacements to flow and entropy.

    probability = softmax(projection · scores)
    flow        = coarse flow + Σ probability · displacement
    entropy     = -Σ probability · log(probability) / log(number of displacements)

On a CPU the plain operations are used; on CUDA, one kernel, which also adds up the patches of
`score_layers`. In training, one kernel forward, and one backward that computes the softmax again,
writes the gradient of the scores and adds up that of the projection: one partial sum for each
program, always in the same order.
"""

from math import isqrt, log
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..models.dicl import DiclLevel
from ..models.matching import DisplacementProjection
from .kernels import kernel, product_side, tl, triton

_ROWS = tl.constexpr(64)  # pixels of a program or a tile
_MOST_DISPLACEMENTS = 64  # in training; more would not fit into registers and shared memory
_PROGRAMS = 264  # that add up gradients: two for each multiprocessor of a large GPU


@triton.jit
def displacements(index, side: tl.constexpr):
    """(1, hypotheses) horizontal and vertical."""
    u, v = index // side - side // 2, index % side - side // 2
    return u.to(tl.float32)[None, :], v.to(tl.float32)[None, :]


@triton.jit
def expectation(probability, index, side: tl.constexpr):
    """The mean displacement of each row, horizontal and vertical."""
    u, v = displacements(index, side)
    return tl.sum(probability * u, 1), tl.sum(probability * v, 1)


@triton.jit
def exponentials(value, known):
    """Scores minus the largest of each row, and their exponentials; those not `known` are zero."""
    value -= tl.max(tl.where(known, value, float("-inf")), 1)[:, None]
    return value, tl.where(known, tl.exp(value), 0.0)


@kernel("batch height width")
def _readout(
    patches,
    bias,
    projection,
    coarse,
    matched,
    entropy,
    batch,
    height,
    width,
    side: tl.constexpr,
    scale: tl.constexpr,
):
    """A run of pixels; patches are ordered by displacement and image."""
    count: tl.constexpr = side * side
    hypotheses: tl.constexpr = product_side(count)
    size = height * width
    pixel = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    in_tile = tl.max_constancy(pixel < batch * size, 2)  # sizes are even
    image, place = pixel // size, pixel % size
    y, x = place // width, place % width
    # each corner of the coarse pixels has four lines and columns: a pixel is in two of each
    tall, wide = 2 * height + 4, 2 * width + 4
    within = (y + y // 2 * 2 + 2) * wide + x + x // 2 * 2 + 2
    index = tl.arange(0, hypotheses)
    known = (index < count)[None, :]
    source = (index[None, :] * batch + image[:, None]).to(tl.int64) * (tall * wide)
    # the two pixels of a cell are neighbours in memory
    source = tl.multiple_of(tl.max_contiguous(source + within[:, None], [2, 1]), [2, 1])
    mask = in_tile[:, None] & known
    value = tl.load(patches + source, mask, 0.0).to(tl.float32) + tl.load(bias)
    value += tl.load(patches + source + 2, mask, 0.0)
    value += tl.load(patches + source + 2 * wide, mask, 0.0)
    value += tl.load(patches + source + 2 * wide + 2, mask, 0.0)
    if projection is not None:
        turned = projection + index[None, :] * count + index[:, None]  # transposed
        weight = tl.load(turned, (index < count)[:, None] & known, 0.0)
        # three products of ten bits each: float32 except for its last bits, twice as fast
        value = tl.dot(value, weight, input_precision="tf32x3")
    value, power = exponentials(value, known)
    probability = power / tl.sum(power, 1)[:, None]
    plogp = probability * tl.log(tl.where(probability > 0, probability, 1.0))
    flow_x, flow_y = expectation(probability, index, side)
    target = image * 2 * size + place
    flow_x += tl.load(coarse + target, in_tile, 0.0)
    flow_y += tl.load(coarse + target + size, in_tile, 0.0)
    tl.store(matched + target, flow_x, in_tile)
    tl.store(matched + target + size, flow_y, in_tile)
    tl.store(entropy + pixel, -tl.sum(plogp, 1) * scale, in_tile)


def readout(
    patches: Tensor, bias: Tensor, projection: Tensor | None, coarse_flow: Tensor | None, batch: int
) -> tuple[Tensor, Tensor]:
    """Matched flow (B, 2, H, W) and entropy (B, 1, H, W), float32.

    `patches` are (U·V·B, H/2 + 1, 4, W/2 + 1, 4): what the four pixels around each corner of the
    coarse pixels add to the scores of the 4x4 pixels around it; `bias` is still to be added.
    `projection` is (U·V, U·V, 1, 1) or None.
    """
    items, down, _, across, _ = patches.shape
    height, width, count = 2 * down - 2, 2 * across - 2, items // batch
    matched = patches.new_empty((batch, 2, height, width), dtype=torch.float32)
    entropy = patches.new_empty((batch, 1, height, width), dtype=torch.float32)
    coarse = torch.zeros_like(matched) if coarse_flow is None else coarse_flow.contiguous()
    maps, sizes = (patches, bias, projection, coarse, matched, entropy), (batch, height, width)
    _readout[(triton.cdiv(batch * height * width, _ROWS.value),)](
        *maps, *sizes, side=isqrt(count), scale=1 / log(count)
    )
    return matched, entropy


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
):
    """A tile of pixels; scores are (U·V, pixels), the displacement is (B, 2, `size`)."""
    count: tl.constexpr = side * side
    hypotheses: tl.constexpr = product_side(count)
    pixel, index = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS), tl.arange(0, hypotheses)
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
):
    """Every `num_programs`-th tile; `partial` (P, U·V, U·V) is of the weight."""
    count: tl.constexpr = side * side
    hypotheses: tl.constexpr = product_side(count)
    index = tl.arange(0, hypotheses)
    known = (index < count)[None, :]
    square = index[:, None] * count + index[None, :]
    both = (index < count)[:, None] & known
    u, v = displacements(index, side)
    total = tl.zeros((hypotheses, hypotheses), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, _ROWS), tl.num_programs(0)):
        pixel = tile * _ROWS + tl.arange(0, _ROWS)
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
        ctx.known = (scores.shape[1], height * width)
        ctx.shape = {"scale": 1 / log(len(scores)), "side": isqrt(len(scores))}
        _forward[(triton.cdiv(scores.shape[1], _ROWS.value),)](
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
        programs = min(triton.cdiv(pixels, _ROWS.value), _PROGRAMS)
        count, result = len(scores), torch.empty_like(scores)
        partial = scores.new_empty((programs, count, count), dtype=torch.float32)
        read = scores if projected is None else projected
        _backward[(programs,)](
            scores, taps, read, gradient, *others, result, partial, *ctx.known, **ctx.shape
        )
        return result, None if taps is None else partial.sum(0)[:, :, None, None], None


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
        if scores.shape[1] * scores.shape[2] > _MOST_DISPLACEMENTS:
            return super().read_off(scores)
        weight = projection.weight if isinstance(projection, DisplacementProjection) else None
        return trained_readout(scores, weight)
