"""Bilinear samples inside kernels, and the warp of a level's features."""

import torch
from torch import Tensor

from .kernels import check, kernel, tl, triton

_ROWS = 64


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
def corner_of(number: tl.constexpr, x, y, height, width):
    """One of the four pixels around x, y: its place, its bilinear weight, and if it is inside."""
    corner_x, corner_y = tl.floor(x) + number % 2, tl.floor(y) + number // 2
    weight = (1.0 - tl.abs(x - corner_x)) * (1.0 - tl.abs(y - corner_y))
    inside = (corner_x >= 0) & (corner_x < width) & (corner_y >= 0) & (corner_y < height)
    return corner_x, corner_y, weight, inside


def sampling_step(old: int, new: int) -> float:
    """Samples of the `old` side from one of the `new` side to the next."""
    return (old - 1) / (new - 1) if new > 1 else 0.0


@kernel("height", "width", "num_rows", "flow_height", "flow_width", "row_step", "column_step")
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
    moves: tl.constexpr,
    scale: tl.constexpr,
    inside_weight: tl.constexpr,
    channels: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels; `flow` is (B, 2, h, w) float32, contiguous."""
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    in_tile = pixel < num_rows
    size = height * width
    image, place = pixel // size, pixel % size
    flow_x, flow_y = tl.zeros((rows,), tl.float32), tl.zeros((rows,), tl.float32)
    if moves:
        row, column = place // width * row_step, place % width * column_step
        flow_size = flow_height * flow_width
        source = flow + image * 2 * flow_size
        flow_x = scale * bilinear(source, row, column, flow_height, flow_width, in_tile)
        source += flow_size
        flow_y = scale * bilinear(source, row, column, flow_height, flow_width, in_tile)
    tl.store(enlarged + image * 2 * size + place, flow_x, in_tile)
    tl.store(enlarged + (image * 2 + 1) * size + place, flow_y, in_tile)
    x, y = place % width + flow_x, place // width + flow_y
    column = tl.arange(0, columns)[None, :]
    value = tl.zeros((rows, columns), tl.float32)
    inside = tl.zeros((rows,), tl.float32)
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
    batch, channels, height, width = features.shape
    result = torch.empty_like(features)
    visible = torch.empty((batch, height, width), dtype=torch.int8, device=features.device)
    enlarged = visible.new_empty((batch, 2, height, width), dtype=torch.float32)
    flow_height, flow_width = (height, width) if flow is None else flow.shape[-2:]
    num_rows = batch * height * width
    _warp[(triton.cdiv(num_rows, _ROWS),)](
        features,
        enlarged if flow is None else flow.float().contiguous(),
        result,
        visible,
        enlarged,
        height=height,
        width=width,
        num_rows=num_rows,
        flow_height=flow_height,
        flow_width=flow_width,
        row_step=sampling_step(flow_height, height),
        column_step=sampling_step(flow_width, width),
        moves=flow is not None,
        scale=1.0 if flow_width == width else 2.0,
        inside_weight=inside_weight,
        channels=channels,
        columns=triton.next_power_of_2(channels),
        rows=_ROWS,
    )
    return result, visible, enlarged
