"""From the maps of the finest level to the packed estimate, on CUDA."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .kernels import kernel, tl, triton
from .sampling import bilinear, corner_of, sampling_step

PARTS = 64  # programs for each channel of a pair
_BLOCK, _WARPS = 2048, 8
# Places of the weights, after the bias, in the order of `config.CUES`.
_ENTROPY, _REFINEMENT, _DISAGREEMENT, _LENGTH, _EDGE, _DIFFERENCE, _OUTSIDE = map(
    tl.constexpr, range(1, 8)
)
_RUN, _ROWS = 1024, 128  # pixels of a program that packs, and of one that adds up cues


@kernel("height", "width", "row_stride", "plane")
def _ranges(
    image1,
    image2,
    result,
    height,
    width,
    row_stride,
    plane,
    parts: tl.constexpr,
    block: tl.constexpr,
):
    """Every `parts`-th block of one channel of a pair."""
    part, channel = tl.program_id(0), tl.program_id(1)
    start = channel.to(tl.int64) * plane
    high1 = tl.full((block,), float("-inf"), tl.float32)
    low1 = tl.full((block,), float("inf"), tl.float32)
    high2, low2, difference = high1, low1, tl.zeros((block,), tl.float32)
    for first in range(part * block, height * width, parts * block):
        place = first + tl.arange(0, block)
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

    The five are highest and lowest of image 1, the same of image 2, and the largest difference;
    of the top left `size` (height, width) only.
    """
    batch, channels, height, width = image1.shape
    result = image1.new_empty((batch, channels, 5, PARTS))
    _ranges[(PARTS, batch * channels)](
        image1.contiguous(),
        image2.contiguous(),
        result,
        *size,
        width,
        height * width,
        parts=PARTS,
        block=_BLOCK,
        num_warps=_WARPS,
    )
    return result


@triton.jit
def _log_length(x, y, stride):
    return tl.log(1.0 + stride * tl.sqrt(x * x + y * y))


@kernel(
    "height",
    "width",
    "num_rows",
    "coarse_height",
    "coarse_width",
    "full_height",
    "full_width",
    "coarse_row_step",
    "coarse_column_step",
    "row_step",
    "column_step",
)
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
    total = tl.load(weights) + tl.load(weights + _ENTROPY) * tl.load(entropy + pixel, there, 0.0)
    moved_x = x - tl.load(matched + x_at, there, 0.0)
    moved_y = y - tl.load(matched + y_at, there, 0.0)
    total += tl.load(weights + _REFINEMENT) * _log_length(moved_x, moved_y, stride)
    coarse_row, coarse_column = row * coarse_row_step, column * coarse_column_step
    source = coarser + number * 2 * coarse_height * coarse_width
    at_x = bilinear(source, coarse_row, coarse_column, coarse_height, coarse_width, there)
    source += coarse_height * coarse_width
    at_y = bilinear(source, coarse_row, coarse_column, coarse_height, coarse_width, there)
    apart_x, apart_y = x - at_x * width / coarse_width, y - at_y * height / coarse_height
    total += tl.load(weights + _DISAGREEMENT) * _log_length(apart_x, apart_y, stride)
    total += tl.load(weights + _LENGTH) * _log_length(x, y, stride)

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
    total += tl.load(weights + _EDGE) * _log_length(high_x - low_x, high_y - low_y, stride)

    goes_x, goes_y = column + x, row + y
    inside, difference = tl.zeros((rows,), tl.float32), tl.zeros((rows,), tl.float32)
    for channel in tl.static_range(3):
        start = (number.to(tl.int64) * 3 + channel) * full_height * full_width
        here = bilinear(
            image1 + start, row * row_step, column * column_step, full_height, full_width, there
        )
        for corner in tl.static_range(4):
            corner_x, corner_y, weight, seen = corner_of(corner, goes_x, goes_y, height, width)
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
    total += tl.load(weights + _DIFFERENCE) * tl.log(difference / 3 + noise)
    total += tl.load(weights + _OUTSIDE) * tl.where(seen, 0.0, 1.0)
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
    height, width = entropy.shape[-2:]
    coarse_height, coarse_width = flows[2].shape[-2:]
    full_height, full_width = images[0].shape[-2:]
    result = torch.empty_like(entropy, memory_format=torch.contiguous_format)
    tensors = [tensor.contiguous() for tensor in (entropy, *flows, *images)]
    _weigh_cues[(triton.cdiv(result.numel(), _ROWS),)](
        *tensors,
        weights,
        result,
        height=height,
        width=width,
        num_rows=result.numel(),
        coarse_height=coarse_height,
        coarse_width=coarse_width,
        coarse_row_step=sampling_step(coarse_height, height),
        coarse_column_step=sampling_step(coarse_width, width),
        full_height=full_height,
        full_width=full_width,
        row_step=sampling_step(full_height, height),
        column_step=sampling_step(full_width, width),
        stride=stride,
        noise=noise,
        inside_weight=inside_weight,
        rows=_ROWS,
    )
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


@kernel(
    "height",
    "width",
    "small_height",
    "small_width",
    "row_step",
    "column_step",
    "scale_x",
    "scale_y",
)
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
    calibrated: tl.constexpr,
    channels: tl.constexpr,
    parts: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels of one image."""
    number = tl.program_id(1).to(tl.int64)
    blank, still = _information(ranges, number, blank_below, parts)
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
        source = cue_sum + number * small_size
        logit = bilinear(source, row, column, small_height, small_width, there)
        confidence = 1.0 / (1.0 + tl.exp(-logit))
        tl.store(target + 2 * size, tl.where(blank, 0.0, confidence), there)
    if channels == 4 or not calibrated:
        source = entropy + number * small_size
        sharp = 1.0 - bilinear(source, row, column, small_height, small_width, there)
        sharp = tl.minimum(tl.maximum(sharp, 0.0), 1.0)
        sharp = tl.where(blank, 0.0, sharp)
        if not calibrated:
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
    _pack[(triton.cdiv(size[0] * size[1], _RUN), len(flow))](
        flow.contiguous(),
        entropy.contiguous(),
        entropy if cue_sum is None else cue_sum,
        ranges,
        result,
        height=size[0],
        width=size[1],
        small_height=height,
        small_width=width,
        row_step=sampling_step(height, seen[0]),
        column_step=sampling_step(width, seen[1]),
        scale_x=seen[1] / width,
        scale_y=seen[0] / height,
        blank_below=blank_below,
        calibrated=cue_sum is not None,
        channels=channels,
        parts=PARTS,
        rows=_RUN,
    )
    return result
