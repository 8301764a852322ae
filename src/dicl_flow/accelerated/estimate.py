"""From the maps of the finest level to the packed estimate, on CUDA."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .kernels import kernel, tl, triton
from .sampling import bilinear, bilinear_vectors, corner_of, sampling_steps

PARTS = 64  # programs for each channel of a pair
_BLOCK = tl.constexpr(2048)
# Places of the weights, after the bias, in the order of `config.CUES`.
_ENTROPY, _REFINEMENT, _DISAGREEMENT, _LENGTH, _EDGE, _DIFFERENCE, _OUTSIDE = map(
    tl.constexpr, range(1, 8)
)
# Pixels of a program that packs, and of one that adds up cues.
_RUN, _ROWS = tl.constexpr(1024), tl.constexpr(128)


@kernel("height width row_stride plane")
def _ranges(image1, image2, result, height, width, row_stride, plane, parts: tl.constexpr):
    """Every `parts`-th block of one channel of a pair."""
    part, channel = tl.program_id(0), tl.program_id(1)
    start = channel.to(tl.int64) * plane
    high1 = tl.full((_BLOCK,), float("-inf"), tl.float32)
    low1 = tl.full((_BLOCK,), float("inf"), tl.float32)
    high2, low2, difference = high1, low1, tl.zeros((_BLOCK,), tl.float32)
    for first in range(part * _BLOCK, height * width, parts * _BLOCK):
        place = first + tl.arange(0, _BLOCK)
        # beyond the end the last pixel counts again, which changes nothing
        place = tl.minimum(place, height * width - 1)
        source = start + place // width * row_stride + place % width
        one, two = tl.load(image1 + source), tl.load(image2 + source)
        high1, low1 = tl.maximum(high1, one), tl.minimum(low1, one)
        high2, low2 = tl.maximum(high2, two), tl.minimum(low2, two)
        difference = tl.maximum(difference, tl.abs(one - two))
    target = result + channel * 5 * parts + part
    tl.store(target, tl.max(high1, 0))
    tl.store(target + parts, tl.min(low1, 0))
    tl.store(target + 2 * parts, tl.max(high2, 0))
    tl.store(target + 3 * parts, tl.min(low2, 0))
    tl.store(target + 4 * parts, tl.max(difference, 0))


def image_ranges(image1: Tensor, image2: Tensor, size: tuple[int, int]) -> Tensor:
    """Two (B, C, H, W) -> (B, C, 5, parts), of which the extreme over the parts is wanted.

    Highest and lowest of image 1, of image 2, largest difference; of the top left `size` only.
    """
    batch, channels, height, width = image1.shape
    result = image1.new_empty((batch, channels, 5, PARTS))
    images, sizes = (image1.contiguous(), image2.contiguous()), (*size, width, height * width)
    _ranges[(PARTS, batch * channels)](*images, result, *sizes, parts=PARTS, num_warps=8)
    return result


@triton.jit
def _log_length(x, y, stride):
    return tl.log(1.0 + stride * tl.sqrt(x * x + y * y))


@triton.jit
def _edge(flow, x, y, row, column, height, width, there):
    """The largest difference of a flow among 3x3 pixels, along x and y; `flow` is where x is."""
    low_x, high_x, low_y, high_y = x, x, y, y
    for neighbour in tl.static_range(9):
        near_row, near_column = row + neighbour // 3 - 1, column + neighbour % 3 - 1
        near = (near_row >= 0) & (near_row < height) & (near_column >= 0) & (near_column < width)
        near &= there
        source = flow + (neighbour // 3 - 1) * width + neighbour % 3 - 1
        near_x = tl.where(near, tl.load(source, near, 0.0), x)
        near_y = tl.where(near, tl.load(source + height * width, near, 0.0), y)
        low_x, high_x = tl.minimum(low_x, near_x), tl.maximum(high_x, near_x)
        low_y, high_y = tl.minimum(low_y, near_y), tl.maximum(high_y, near_y)
    return high_x - low_x, high_y - low_y


@triton.jit
def _colour_difference(images, number, pixel, goes, size, full_size, steps, there):
    """Of a pixel of image 1 and where it goes in image 2: the sum over channels; the inside."""
    row_step, column_step = steps
    inside, difference = tl.zeros((_ROWS,), tl.float32), tl.zeros((_ROWS,), tl.float32)
    for channel in tl.static_range(3):
        start = (number.to(tl.int64) * 3 + channel) * full_size[0] * full_size[1]
        row, column = pixel[0] * row_step, pixel[1] * column_step
        here = bilinear(images[0] + start, row, column, *full_size, there)
        for corner in tl.static_range(4):
            corner_x, corner_y, weight, seen = corner_of(corner, *goes, *size)
            seen &= there
            at_row = tl.where(seen, corner_y, 0.0) * row_step
            at_column = tl.where(seen, corner_x, 0.0) * column_step
            here -= weight * bilinear(images[1] + start, at_row, at_column, *full_size, seen)
            if channel == 0:
                inside += tl.where(seen, weight, 0.0)
        difference += tl.abs(here)
    return difference, inside


_SIZES = (
    "height width num_rows coarse_height coarse_width coarse_row_step coarse_column_step "
    "full_height full_width row_step column_step"
)


@kernel(_SIZES)
def _weigh_cues(
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
):
    """A run of pixels; `weights` are the bias and one weight for each cue."""
    pixel = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    there = pixel < num_rows
    size = height * width
    number, place = pixel // size, pixel % size
    row, column = place // width, place % width
    x_at = number * 2 * size + place
    y_at = x_at + size
    x, y = tl.load(refined + x_at, there, 0.0), tl.load(refined + y_at, there, 0.0)
    total = tl.load(weights) + tl.load(weights + _ENTROPY) * tl.load(entropy + pixel, there, 0.0)
    moved_x = x - tl.load(matched + x_at, there, 0.0)
    moved_y = y - tl.load(matched + y_at, there, 0.0)
    total += tl.load(weights + _REFINEMENT) * _log_length(moved_x, moved_y, stride)
    coarse_row, coarse_column = row * coarse_row_step, column * coarse_column_step
    at_x, at_y = bilinear_vectors(
        coarser, number, coarse_row, coarse_column, coarse_height, coarse_width, there
    )
    apart_x, apart_y = x - at_x * width / coarse_width, y - at_y * height / coarse_height
    total += tl.load(weights + _DISAGREEMENT) * _log_length(apart_x, apart_y, stride)
    total += tl.load(weights + _LENGTH) * _log_length(x, y, stride)
    edge_x, edge_y = _edge(refined + x_at, x, y, row, column, height, width, there)
    total += tl.load(weights + _EDGE) * _log_length(edge_x, edge_y, stride)
    images, pixels, goes = (image1, image2), (row, column), (column + x, row + y)
    sizes = ((height, width), (full_height, full_width), (row_step, column_step))
    difference, inside = _colour_difference(images, number, pixels, goes, *sizes, there)
    total += tl.load(weights + _DIFFERENCE) * tl.log(difference / 3 + noise)
    total += tl.load(weights + _OUTSIDE) * tl.where(inside >= inside_weight, 0.0, 1.0)
    tl.store(result + pixel, total, there)


def weigh_cues(
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
    size, coarse, full = entropy.shape[-2:], flows[2].shape[-2:], images[0].shape[-2:]
    result = torch.empty_like(entropy, memory_format=torch.contiguous_format)
    tensors = [tensor.contiguous() for tensor in (entropy, *flows, *images)]
    sizes = (*size, result.numel())
    for other in (coarse, full):
        sizes += (*other, *sampling_steps(other, size))
    constants = {"stride": stride, "noise": noise, "inside_weight": inside_weight}
    grid = (triton.cdiv(result.numel(), _ROWS.value),)
    named = dict(zip(_SIZES.split(), sizes, strict=True))
    _weigh_cues[grid](*tensors, weights, result, **named, **constants)
    return result


@triton.jit
def _information(ranges, number, blank_below, parts: tl.constexpr):
    """Whether a pair is blank, and whether it is blank or still, as in `estimation`."""
    contrast1, contrast2, difference = 0.0, 0.0, 0.0
    for channel in tl.static_range(3):
        source = ranges + (number * 3 + channel) * 5 * parts + tl.arange(0, parts)
        extent1 = tl.max(tl.load(source), 0) - tl.min(tl.load(source + parts), 0)
        extent2 = tl.max(tl.load(source + 2 * parts), 0) - tl.min(tl.load(source + 3 * parts), 0)
        contrast1, contrast2 = tl.maximum(contrast1, extent1), tl.maximum(contrast2, extent2)
        difference = tl.maximum(difference, tl.max(tl.load(source + 4 * parts), 0))
    blank = tl.minimum(contrast1, contrast2) < blank_below
    return blank, blank | (difference == 0.0)


@kernel("height width small_height small_width row_step column_step scale_x scale_y")
def _pack(
    flow,
    entropy,
    cue_sum,
    ranges,
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
    channels: tl.constexpr,
    parts: tl.constexpr,
):
    """A run of pixels of one image; without a `cue_sum`, the confidence is the sharpness."""
    number = tl.program_id(1).to(tl.int64)
    blank, still = _information(ranges, number, blank_below, parts)
    size, small_size = height * width, small_height * small_width
    place = tl.program_id(0) * _RUN + tl.arange(0, _RUN)
    there = place < size
    row, column = place // width * row_step, place % width * column_step
    target = result + number * channels * size + place
    x, y = bilinear_vectors(flow, number, row, column, small_height, small_width, there)
    tl.store(target, tl.where(still, 0.0, scale_x * x), there)
    tl.store(target + size, tl.where(still, 0.0, scale_y * y), there)
    if cue_sum is not None:
        source = cue_sum + number * small_size
        logit = bilinear(source, row, column, small_height, small_width, there)
        confidence = 1.0 / (1.0 + tl.exp(-logit))
        tl.store(target + 2 * size, tl.where(blank, 0.0, confidence), there)
    if channels == 4 or cue_sum is None:
        source = entropy + number * small_size
        sharp = 1.0 - bilinear(source, row, column, small_height, small_width, there)
        sharp = tl.where(blank, 0.0, tl.minimum(tl.maximum(sharp, 0.0), 1.0))
        if cue_sum is None:
            tl.store(target + 2 * size, sharp, there)
        if channels == 4:
            tl.store(target + 3 * size, sharp, there)


def pack_estimate(
    flow: Tensor,
    entropy: Tensor,
    cue_sum: Tensor | None,
    ranges: Tensor,
    blank_below: float,
    seen: tuple[int, int],
    size: tuple[int, int],
    *,
    sharpness: bool,
) -> Tensor:
    """(B, 3 or 4, height, width): `size`, the top left part of what was `seen`.

    `flow` (B, 2, h, w), `entropy` and `cue_sum` (B, 1, h, w) are of the finest level; without
    `cue_sum`, the confidence is the sharpness. `ranges` are the `image_ranges` of both images: a
    pair with a blank frame is zero, a pair of equal frames has no flow.
    """
    height, width = flow.shape[-2:]
    channels = 4 if sharpness else 3
    result = flow.new_empty((len(flow), channels, *size))
    maps = (flow.contiguous(), entropy.contiguous(), cue_sum, ranges, result)
    steps = sampling_steps((height, width), seen)
    scale = {"scale_x": seen[1] / width, "scale_y": seen[0] / height}
    constants = {"blank_below": blank_below, "channels": channels, "parts": PARTS}
    grid = (triton.cdiv(size[0] * size[1], _RUN.value), len(flow))
    _pack[grid](*maps, *size, height, width, *steps, **scale, **constants)
    return result
