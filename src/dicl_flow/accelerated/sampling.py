"""Bilinear samples inside kernels, and the warp of a level's features."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .kernels import check, kernel, tl, triton

_ROWS = tl.constexpr(64)


@triton.jit
def bilinear(source, row, column, height, width, there):
    """Samples of (height, width) maps that begin at `source`, at fractional rows and columns."""
    top, left = row.to(tl.int32), column.to(tl.int32)
    down, right = tl.where(top < height - 1, width, 0), tl.where(left < width - 1, 1, 0)
    low, far = row - top, column - left
    corner = source + top * width + left
    above = (1 - far) * tl.load(corner, there, 0.0) + far * tl.load(corner + right, there, 0.0)
    corner += down
    below = (1 - far) * tl.load(corner, there, 0.0) + far * tl.load(corner + right, there, 0.0)
    return (1 - low) * above + low * below


@triton.jit
def bilinear_vectors(flow, image, row, column, height, width, there):
    """Samples of (B, 2, height, width) flows: x and y."""
    source = flow + image * 2 * (height * width)
    x = bilinear(source, row, column, height, width, there)
    return x, bilinear(source + height * width, row, column, height, width, there)


@triton.jit
def corner_of(number: tl.constexpr, x, y, height, width):
    """One of the four pixels around x, y: its place, its bilinear weight, and if it is inside."""
    corner_x, corner_y = tl.floor(x) + number % 2, tl.floor(y) + number // 2
    weight = (1.0 - tl.abs(x - corner_x)) * (1.0 - tl.abs(y - corner_y))
    inside = (corner_x >= 0) & (corner_x < width) & (corner_y >= 0) & (corner_y < height)
    return corner_x, corner_y, weight, inside


def sampling_steps(old: Sequence[int], new: Sequence[int]) -> list[float]:
    """Samples of `old` (height, width) from one of the `new` size to the next, along each axis."""
    sides = zip(old, new, strict=True)
    return [(before - 1) / (after - 1) if after > 1 else 0.0 for before, after in sides]


@kernel("height width num_rows flow_height flow_width row_step column_step")
def _warp(
    features,
    flow,
    result,
    visible,
    enlarged,
    height,
    width,
    num_rows,
    flow_height,
    flow_width,
    row_step,
    column_step,
    scale: tl.constexpr,
    inside_weight: tl.constexpr,
    channels: tl.constexpr,
):
    """A run of pixels; `flow` is (B, 2, h, w) float32, contiguous, or None."""
    columns: tl.constexpr = triton.next_power_of_2(channels)
    pixel = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    in_tile = pixel < num_rows
    size = height * width
    image, place = pixel // size, pixel % size
    flow_x, flow_y = tl.zeros((_ROWS,), tl.float32), tl.zeros((_ROWS,), tl.float32)
    if flow is not None:
        row, column = place // width * row_step, place % width * column_step
        flow_x, flow_y = bilinear_vectors(
            flow, image, row, column, flow_height, flow_width, in_tile
        )
        flow_x, flow_y = scale * flow_x, scale * flow_y
    tl.store(enlarged + image * 2 * size + place, flow_x, in_tile)
    tl.store(enlarged + (image * 2 + 1) * size + place, flow_y, in_tile)
    x, y = place % width + flow_x, place // width + flow_y
    column = tl.arange(0, columns)[None, :]
    value = tl.zeros((_ROWS, columns), tl.float32)
    inside = tl.zeros((_ROWS,), tl.float32)
    for corner in tl.static_range(4):
        corner_x, corner_y, weight, there = corner_of(corner, x, y, height, width)
        there &= in_tile
        inside += tl.where(there, weight, 0.0)
        source = image * size + tl.where(there, corner_y * width + corner_x, 0.0).to(tl.int32)
        mask = there[:, None] & (column < channels)
        sample = tl.load(features + source[:, None].to(tl.int64) * channels + column, mask, 0.0)
        value += sample.to(tl.float32) * weight[:, None]
    value = tl.where(inside[:, None] >= inside_weight, value, 0.0).to(result.dtype.element_ty)
    target = result + pixel[:, None].to(tl.int64) * channels + column
    tl.store(target, value, in_tile[:, None] & (column < channels))
    tl.store(visible + pixel, tl.max((value != 0.0).to(tl.int8), 1), in_tile)


def warp(
    features: Tensor, flow: Tensor | None, inside_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `ops.warp`: (B, C, H, W) channels last; (B, H, W) int8: is it not zero; the flow.

    A flow that is smaller is that of the next coarser level; None is no motion.
    """
    check(features)
    batch, channels, *size = features.shape
    result = torch.empty_like(features)
    visible = torch.empty((batch, *size), dtype=torch.int8, device=features.device)
    enlarged = visible.new_empty((batch, 2, *size), dtype=torch.float32)
    flow_size = size if flow is None else flow.shape[-2:]
    given = None if flow is None else flow.float().contiguous()
    sizes = (*size, visible.numel(), *flow_size, *sampling_steps(flow_size, size))
    _warp[(triton.cdiv(visible.numel(), _ROWS.value),)](
        features,
        given,
        result,
        visible,
        enlarged,
        *sizes,
        scale=1.0 if flow_size[1] == size[1] else 2.0,
        inside_weight=inside_weight,
        channels=channels,
    )
    return result, visible, enlarged
