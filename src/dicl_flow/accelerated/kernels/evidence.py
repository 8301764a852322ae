"""The weighted sum of all cues of the confidence, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .aligned_sampling import bilinear, sampling_step
from .launching import kernel

_ROWS, _WARPS = 128, 4


@triton.jit
def _log_length(x, y, stride):
    return tl.log(1.0 + stride * tl.sqrt(x * x + y * y))


@kernel(
    do_not_specialize=[
        *("height", "width", "num_rows", "coarse_height", "coarse_width"),
        *("full_height", "full_width", "coarse_row_step", "coarse_column_step"),
        *("row_step", "column_step"),
    ]
)
def _evidence(
    entropy,
    refined,
    matched,
    coarser,
    image1,
    image2,
    weights,
    result,
    height,
    width,
    num_rows,
    coarse_height,
    coarse_width,
    coarse_row_step,
    coarse_column_step,
    full_height,
    full_width,
    row_step,
    column_step,
    stride: tl.constexpr,
    noise: tl.constexpr,
    inside_weight: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels; `weights` are the bias and one weight for each cue."""
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    there = pixel < num_rows
    size = height * width
    number, place = pixel // size, pixel % size
    row, column = place // width, place % width
    x_at = number * 2 * size + place
    y_at = x_at + size
    x, y = tl.load(refined + x_at, there, 0.0), tl.load(refined + y_at, there, 0.0)
    total = tl.load(weights) + tl.load(weights + 1) * tl.load(entropy + pixel, there, 0.0)
    moved_x = x - tl.load(matched + x_at, there, 0.0)
    moved_y = y - tl.load(matched + y_at, there, 0.0)
    total += tl.load(weights + 2) * _log_length(moved_x, moved_y, stride)
    coarse_row, coarse_column = row * coarse_row_step, column * coarse_column_step
    source = coarser + number * 2 * coarse_height * coarse_width
    at_x = bilinear(source, coarse_row, coarse_column, coarse_height, coarse_width, there)
    source += coarse_height * coarse_width
    at_y = bilinear(source, coarse_row, coarse_column, coarse_height, coarse_width, there)
    apart_x, apart_y = x - at_x * width / coarse_width, y - at_y * height / coarse_height
    total += tl.load(weights + 3) * _log_length(apart_x, apart_y, stride)
    total += tl.load(weights + 4) * _log_length(x, y, stride)

    low_x, high_x, low_y, high_y = x, x, y, y
    for neighbour in tl.static_range(9):
        near_row, near_column = row + neighbour // 3 - 1, column + neighbour % 3 - 1
        near = (near_row >= 0) & (near_row < height) & (near_column >= 0) & (near_column < width)
        near &= there
        step = (neighbour // 3 - 1) * width + neighbour % 3 - 1
        near_x = tl.where(near, tl.load(refined + x_at + step, near, 0.0), x)
        near_y = tl.where(near, tl.load(refined + y_at + step, near, 0.0), y)
        low_x, high_x = tl.minimum(low_x, near_x), tl.maximum(high_x, near_x)
        low_y, high_y = tl.minimum(low_y, near_y), tl.maximum(high_y, near_y)
    total += tl.load(weights + 5) * _log_length(high_x - low_x, high_y - low_y, stride)

    goes_x, goes_y = column + x, row + y
    left, top = tl.floor(goes_x), tl.floor(goes_y)
    inside, difference = tl.zeros((rows,), tl.float32), tl.zeros((rows,), tl.float32)
    for channel in tl.static_range(3):
        start = (number.to(tl.int64) * 3 + channel) * full_height * full_width
        here = bilinear(
            image1 + start, row * row_step, column * column_step, full_height, full_width, there
        )
        for corner in tl.static_range(4):
            corner_x, corner_y = left + corner % 2, top + corner // 2
            weight = (1.0 - tl.abs(goes_x - corner_x)) * (1.0 - tl.abs(goes_y - corner_y))
            seen = (corner_x >= 0) & (corner_x < width) & (corner_y >= 0) & (corner_y < height)
            seen &= there
            at_row, at_column = tl.where(seen, corner_y, 0.0), tl.where(seen, corner_x, 0.0)
            here -= weight * bilinear(
                image2 + start,
                at_row * row_step,
                at_column * column_step,
                full_height,
                full_width,
                seen,
            )
            if channel == 0:
                inside += tl.where(seen, weight, 0.0)
        difference += tl.abs(here)
    seen = inside >= inside_weight
    total += tl.load(weights + 6) * tl.log(difference / 3 + noise)
    total += tl.load(weights + 7) * tl.where(seen, 0.0, 1.0)
    tl.store(result + pixel, total, there)


def evidence(
    entropy: Tensor,
    flows: Sequence[Tensor],
    images: Sequence[Tensor],
    weights: Tensor,
    stride: float,
    noise: float,
    inside_weight: float,
) -> Tensor:
    """(B, 1, H, W): the bias plus the cues of `estimation.confidence`, weighted by `weights` (8,).

    `flows` are refined, matched and that of the coarser level at its size, (B, 2, h, w); `images`
    two (B, 3, H, W); all float32.
    """
    height, width = entropy.shape[-2:]
    coarse_height, coarse_width = flows[2].shape[-2:]
    full_height, full_width = images[0].shape[-2:]
    result = torch.empty_like(entropy, memory_format=torch.contiguous_format)
    tensors = [tensor.contiguous() for tensor in (entropy, *flows, *images)]
    with torch.cuda.device_of(result):
        _evidence[(triton.cdiv(result.numel(), _ROWS),)](
            *tensors,
            weights,
            result,
            height,
            width,
            result.numel(),
            coarse_height,
            coarse_width,
            sampling_step(coarse_height, height),
            sampling_step(coarse_width, width),
            full_height,
            full_width,
            sampling_step(full_height, height),
            sampling_step(full_width, width),
            stride=stride,
            noise=noise,
            inside_weight=inside_weight,
            rows=_ROWS,
            num_warps=_WARPS,
        )
    return result
