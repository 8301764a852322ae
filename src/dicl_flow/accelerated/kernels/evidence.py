"""The weighted sum of all cues of the confidence, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel

_ROWS, _WARPS = 256, 4


@triton.jit
def _log_length(x, y, stride):
    return tl.log(1.0 + stride * tl.sqrt(x * x + y * y))


@kernel(do_not_specialize=["height", "width", "num_rows"])
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
    apart_x = x - tl.load(coarser + x_at, there, 0.0)
    apart_y = y - tl.load(coarser + y_at, there, 0.0)
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
    inside = tl.zeros((rows,), tl.float32)
    red, green, blue = inside, inside, inside
    for corner in tl.static_range(4):
        corner_x, corner_y = left + corner % 2, top + corner // 2
        weight = (1.0 - tl.abs(goes_x - corner_x)) * (1.0 - tl.abs(goes_y - corner_y))
        seen = (corner_x >= 0) & (corner_x < width) & (corner_y >= 0) & (corner_y < height) & there
        inside += tl.where(seen, weight, 0.0)
        source = number * 3 * size + tl.where(seen, corner_y * width + corner_x, 0.0).to(tl.int32)
        red += weight * tl.load(image2 + source, seen, 0.0)
        green += weight * tl.load(image2 + source + size, seen, 0.0)
        blue += weight * tl.load(image2 + source + 2 * size, seen, 0.0)
    seen = inside >= inside_weight
    here = image1 + number * 3 * size + place
    difference = tl.abs(red - tl.load(here, there, 0.0))
    difference += tl.abs(green - tl.load(here + size, there, 0.0))
    difference += tl.abs(blue - tl.load(here + 2 * size, there, 0.0))
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

    `flows` are refined, matched and that of the coarser level, (B, 2, H, W); `images` two
    (B, 3, H, W), of the same size; all float32.
    """
    height, width = entropy.shape[-2:]
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
            stride=stride,
            noise=noise,
            inside_weight=inside_weight,
            rows=_ROWS,
            num_warps=_WARPS,
        )
    return result
