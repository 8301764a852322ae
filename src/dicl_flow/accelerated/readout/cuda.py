"""From scores to flow in one pass: sum of patches, projection, softmax, expectation, entropy."""

from math import isqrt, log

import torch
from torch import Tensor

from ..kernels import kernel, product_side, tl, triton

_ROWS = 64


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
    radius: tl.constexpr,
    hypotheses: tl.constexpr,
    projects: tl.constexpr,
    scale: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels; patches are ordered by displacement and image."""
    num_shifts: tl.constexpr = 2 * radius + 1
    count: tl.constexpr = num_shifts * num_shifts
    size = height * width
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
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
    if projects:
        turned = projection + index[None, :] * count + index[:, None]  # transposed
        weight = tl.load(turned, (index < count)[:, None] & known, 0.0)
        # three products of ten bits each: float32 except for its last bits, twice as fast
        value = tl.dot(value, weight, input_precision="tf32x3")
    value, power = exponentials(value, known)
    probability = power / tl.sum(power, 1)[:, None]
    plogp = probability * tl.log(tl.where(probability > 0, probability, 1.0))
    flow_x, flow_y = expectation(probability, index, num_shifts)
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
    _readout[(triton.cdiv(batch * height * width, _ROWS),)](
        patches,
        bias,
        patches if projection is None else projection,
        torch.zeros_like(matched) if coarse_flow is None else coarse_flow.contiguous(),
        matched,
        entropy,
        batch,
        height,
        width,
        radius=(isqrt(count) - 1) // 2,
        hypotheses=product_side(count),
        projects=projection is not None,
        scale=1 / log(count),
        rows=_ROWS,
    )
    return matched, entropy
