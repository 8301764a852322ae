"""The packed estimate from the maps of the finest level, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .aligned_sampling import bilinear, sampling_step
from .extremes import PARTS
from .launching import kernel

_ROWS, _WARPS = 1024, 4


@triton.jit
def _information(extremes, number, blank_below, parts: tl.constexpr):
    """Whether a pair is blank, and whether it is blank or still; see `estimation.gate`."""
    contrast1, contrast2, apart = 0.0, 0.0, 0.0
    for channel in tl.static_range(3):
        source = extremes + (number * 3 + channel) * 5 * parts + tl.arange(0, parts)
        extent1 = tl.max(tl.load(source), 0) - tl.min(tl.load(source + parts), 0)
        extent2 = tl.max(tl.load(source + 2 * parts), 0) - tl.min(tl.load(source + 3 * parts), 0)
        contrast1, contrast2 = tl.maximum(contrast1, extent1), tl.maximum(contrast2, extent2)
        apart = tl.maximum(apart, tl.max(tl.load(source + 4 * parts), 0))
    blank = tl.minimum(contrast1, contrast2) < blank_below
    return blank, blank | (apart == 0.0)


@kernel(
    do_not_specialize=[
        *("height", "width", "small_height", "small_width"),
        *("row_step", "column_step", "scale_x", "scale_y"),
    ]
)
def _answer(
    flow,
    entropy,
    evidence,
    extremes,
    result,
    height,
    width,
    small_height,
    small_width,
    row_step,
    column_step,
    scale_x,
    scale_y,
    blank_below: tl.constexpr,
    calibrated: tl.constexpr,
    channels: tl.constexpr,
    parts: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels of one image."""
    number = tl.program_id(1).to(tl.int64)
    blank, still = _information(extremes, number, blank_below, parts)
    size, small_size = height * width, small_height * small_width
    place = tl.program_id(0) * rows + tl.arange(0, rows)
    there = place < size
    row, column = place // width * row_step, place % width * column_step
    target = result + number * channels * size + place
    source = flow + number * 2 * small_size
    x = scale_x * bilinear(source, row, column, small_height, small_width, there)
    source += small_size
    y = scale_y * bilinear(source, row, column, small_height, small_width, there)
    tl.store(target, tl.where(still, 0.0, x), there)
    tl.store(target + size, tl.where(still, 0.0, y), there)
    if calibrated:
        source = evidence + number * small_size
        found = bilinear(source, row, column, small_height, small_width, there)
        found = 1.0 / (1.0 + tl.exp(-found))
        tl.store(target + 2 * size, tl.where(blank, 0.0, found), there)
    if channels == 4 or not calibrated:
        source = entropy + number * small_size
        sharp = 1.0 - bilinear(source, row, column, small_height, small_width, there)
        sharp = tl.minimum(tl.maximum(sharp, 0.0), 1.0)
        sharp = tl.where(blank, 0.0, sharp)
        if not calibrated:
            tl.store(target + 2 * size, sharp, there)
        if channels == 4:
            tl.store(target + 3 * size, sharp, there)


def answer(
    flow: Tensor,
    entropy: Tensor,
    evidence: Tensor | None,
    extremes: Tensor,
    blank_below: float,
    seen: tuple[int, int],
    size: tuple[int, int],
    *,
    sharpness: bool,
) -> Tensor:
    """(B, 3 or 4, height, width): `size`, the top left part of what was `seen`, gated.

    `flow` (B, 2, h, w), `entropy` and `evidence` (B, 1, h, w) are of the finest level; without
    evidence the confidence is the sharpness. `extremes` are those of both images.
    """
    height, width = flow.shape[-2:]
    channels = 4 if sharpness else 3
    result = flow.new_empty((len(flow), channels, *size))
    with torch.cuda.device_of(result):
        _answer[(triton.cdiv(size[0] * size[1], _ROWS), len(flow))](
            flow.contiguous(),
            entropy.contiguous(),
            entropy if evidence is None else evidence,
            extremes,
            result,
            *size,
            height,
            width,
            sampling_step(height, seen[0]),
            sampling_step(width, seen[1]),
            seen[1] / width,
            seen[0] / height,
            blank_below=blank_below,
            calibrated=evidence is not None,
            channels=channels,
            parts=PARTS,
            rows=_ROWS,
            num_warps=_WARPS,
        )
    return result
