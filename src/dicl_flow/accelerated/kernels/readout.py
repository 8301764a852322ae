"""From scores to flow in one pass: projection, softmax, expectation and entropy."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from math import isqrt, log

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel

_ROWS, _WARPS = 32, 4


@kernel(do_not_specialize=["batch", "height", "width"])
def _readout(
    scores,
    bias,
    projection,
    coarse,
    matched,
    entropy,
    batch,
    height,
    width,
    cell: tl.constexpr,
    radius: tl.constexpr,
    hypotheses: tl.constexpr,
    projects: tl.constexpr,
    scale: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels; scores are ordered by displacement, image and 2x2 cell."""
    num_shifts: tl.constexpr = 2 * radius + 1
    count: tl.constexpr = num_shifts * num_shifts
    size = height * width
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    in_tile = pixel < batch * size
    image, place = pixel // size, pixel % size
    y, x = place // width, place % width
    within = (y // 2 * (width // 2) + x // 2) * cell + y % 2 * 2 + x % 2
    index = tl.arange(0, hypotheses)
    known = (index < count)[None, :]
    source = (index[None, :] * batch + image[:, None]).to(tl.int64) * (size // 4 * cell)
    value = tl.load(scores + source + within[:, None], in_tile[:, None] & known, 0.0)
    value = value.to(tl.float32) + tl.load(bias)
    if projects:
        turned = projection + index[None, :] * count + index[:, None]  # transposed
        weight = tl.load(turned, (index < count)[:, None] & known, 0.0)
        # three products of ten bits each: float32 except for its last bits, twice as fast
        value = tl.dot(value, weight, input_precision="tf32x3")
    value = tl.where(known, value, float("-inf"))
    value -= tl.max(value, 1)[:, None]
    power = tl.exp(value)
    total = tl.sum(power, 1)
    probability = power / total[:, None]
    plogp = probability * tl.log(tl.where(probability > 0, probability, 1.0))
    u = (index // num_shifts - radius).to(tl.float32)[None, :]
    v = (index % num_shifts - radius).to(tl.float32)[None, :]
    flow_x, flow_y = tl.sum(probability * u, 1), tl.sum(probability * v, 1)
    target = image * 2 * size + place
    flow_x += tl.load(coarse + target, in_tile, 0.0)
    flow_y += tl.load(coarse + target + size, in_tile, 0.0)
    tl.store(matched + target, flow_x, in_tile)
    tl.store(matched + target + size, flow_y, in_tile)
    tl.store(entropy + pixel, -tl.sum(plogp, 1) * scale, in_tile)


def readout(
    scores: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    coarse_flow: Tensor | None,
    batch: int,
) -> tuple[Tensor, Tensor]:
    """Matched flow (B, 2, H, W) and entropy (B, 1, H, W), float32.

    `scores` are (U·V·B, cells, H/2, W/2), channels last: the first four channels are the
    pixels of a 2x2 cell; `bias` is still to be added. `projection` is (U·V, U·V, 1, 1) or None.
    """
    items, cell, half_height, half_width = scores.shape
    height, width, count = 2 * half_height, 2 * half_width, items // batch
    matched = scores.new_empty((batch, 2, height, width), dtype=torch.float32)
    entropy = scores.new_empty((batch, 1, height, width), dtype=torch.float32)
    with torch.cuda.device_of(scores):
        _readout[(triton.cdiv(batch * height * width, _ROWS),)](
            scores,
            bias,
            scores if projection is None else projection,
            torch.zeros_like(matched) if coarse_flow is None else coarse_flow.contiguous(),
            matched,
            entropy,
            batch,
            height,
            width,
            cell=cell,
            radius=(isqrt(count) - 1) // 2,
            hypotheses=max(triton.next_power_of_2(count), 16),
            projects=projection is not None,
            scale=1 / log(count),
            rows=_ROWS,
            num_warps=_WARPS,
        )
    return matched, entropy
