"""Warping of channels-last features, and which of them are visible, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel
from .layout import check

_ROWS, _WARPS = 64, 4


@kernel(do_not_specialize=["height", "width", "num_rows"])
def _warp(
    features,
    flow,
    result,
    visible,
    height,
    width,
    num_rows,
    inside_weight: tl.constexpr,
    channels: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels; `flow` is (B, 2, H, W) float32, contiguous."""
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    in_tile = pixel < num_rows
    size = height * width
    image, place = pixel // size, pixel % size
    x = place % width + tl.load(flow + image * 2 * size + place, in_tile, 0.0)
    y = place // width + tl.load(flow + (image * 2 + 1) * size + place, in_tile, 0.0)
    left, top = tl.floor(x), tl.floor(y)
    column = tl.arange(0, columns)[None, :]
    value = tl.zeros((rows, columns), tl.float32)
    inside = tl.zeros((rows,), tl.float32)
    for corner in tl.static_range(4):
        corner_x, corner_y = left + corner % 2, top + corner // 2
        weight = (1.0 - tl.abs(x - corner_x)) * (1.0 - tl.abs(y - corner_y))
        there = (corner_x >= 0) & (corner_x < width) & (corner_y >= 0) & (corner_y < height)
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


def warp(features: Tensor, flow: Tensor, inside_weight: float) -> tuple[Tensor, Tensor]:
    """As `ops.warp`: (B, C, H, W) channels last, and (B, H, W) int8: is it not zero."""
    check(features)
    batch, channels, height, width = features.shape
    result = torch.empty_like(features)
    visible = torch.empty((batch, height, width), dtype=torch.int8, device=features.device)
    num_rows = batch * height * width
    with torch.cuda.device_of(features):
        _warp[(triton.cdiv(num_rows, _ROWS),)](
            features,
            flow.float().contiguous(),
            result,
            visible,
            height,
            width,
            num_rows,
            inside_weight=inside_weight,
            channels=channels,
            columns=triton.next_power_of_2(channels),
            rows=_ROWS,
            num_warps=_WARPS,
        )
    return result, visible
