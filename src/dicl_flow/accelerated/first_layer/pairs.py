"""The input of any matching net in one pass: every pixel with each of its displacements."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import InputError
from ..kernels import check, in_rows, kernel, new_map, tile_shape, tl, triton

_STAGES = tl.constexpr(3)  # displacements that are loaded at a time
_TILE = 2048  # elements: 16 for each thread, two 16-byte accesses in half precision


@triton.jit
def _shifted(pixel, u, v, height, width):
    """The flat index of `pixel` + (u, v), and whether that lies in the image."""
    x, y = pixel % width + u, pixel // width + v
    return y * width + x, (x >= 0) & (x < width) & (y >= 0) & (y < height)


@kernel()
def _build(
    features1,
    features2,
    pairs,
    visible,
    channels,
    height,
    width,
    num_tiles,
    radius: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """One displacement of one tile of pixels; also writes `visible` (B, H, W)."""
    side: tl.constexpr = 2 * radius + 1
    item = tl.program_id(0) // num_tiles  # (b·U + u)·V + v
    batch = (item // (side * side)).to(tl.int64)
    u, v = item // side % side - radius, item % side - radius
    pixel = (tl.program_id(0) % num_tiles) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)[None, :]
    in_tile = pixel < height * width
    other, in_image = _shifted(pixel, u, v, height, width)

    mask = in_tile[:, None] & (column < channels)
    maps = batch * height * width
    moved = tl.load(
        features2 + maps * channels + other[:, None] * channels + column,
        mask & in_image[:, None],
        0.0,
    )
    seen = tl.max((moved != 0.0).to(tl.int32), 1)
    place = pixel[:, None] * channels + column
    mine = tl.load(features1 + maps * channels + place, mask & (seen[:, None] > 0), 0.0)

    target = pairs + item.to(tl.int64) * height * width * 2 * channels
    target += pixel[:, None] * (2 * channels) + column
    tl.store(target, mine, mask)
    tl.store(target + channels, moved, mask)
    if item % (side * side) == side * side // 2:  # not displaced
        tl.store(visible + maps + pixel, seen.to(tl.int8), in_tile)


@kernel()
def _collect(
    gradient,
    visible,
    gradient1,
    gradient2,
    channels,
    height,
    width,
    num_tiles,
    stride,
    radius: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Gradients of a tile of pixels, summed over all displacements."""
    side: tl.constexpr = 2 * radius + 1
    batch = (tl.program_id(0) // num_tiles).to(tl.int64)
    pixel = (tl.program_id(0) % num_tiles) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)[None, :]
    in_tile = pixel < height * width
    known = column < channels
    maps = batch * height * width
    first = tl.zeros((rows, columns), tl.float32)
    second = tl.zeros((rows, columns), tl.float32)
    for index in tl.range(side * side, num_stages=_STAGES):
        u, v = index // side - radius, index % side - radius
        source = gradient + (batch * side * side + index) * height * width * stride
        other, in_image = _shifted(pixel, u, v, height, width)
        seen = tl.load(visible + maps + other, in_tile & in_image, 0) > 0
        place = pixel[:, None] * stride + column
        value = tl.load(source + place, in_tile[:, None] & known, 0.0).to(tl.float32)
        first += tl.where(seen[:, None], value, 0.0)
        # this pixel was the candidate of the pixel at -(u, v) from it
        other, in_image = _shifted(pixel, -u, -v, height, width)
        place = other[:, None] * stride + channels + column
        mask = (in_tile & in_image)[:, None] & known
        second += tl.load(source + place, mask, 0.0).to(tl.float32)
    place = maps * channels + pixel[:, None] * channels + column
    mask = in_tile[:, None] & known
    tl.store(gradient1 + place, first.to(gradient1.dtype.element_ty), mask)
    tl.store(gradient2 + place, second.to(gradient2.dtype.element_ty), mask)


def _tiles(channels: int, num_pixels: int) -> tuple[int, dict[str, int]]:
    """The number of tiles of an image, and their shape."""
    shape = tile_shape(channels, _TILE)
    return triton.cdiv(num_pixels, shape["rows"]), shape


class _PairWindows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features1: Tensor, features2: Tensor, radius: int) -> Tensor:
        batch, channels, height, width = features1.shape
        num_items = batch * (2 * radius + 1) ** 2
        num_tiles, shape = _tiles(channels, height * width)
        visible = features1.new_empty((batch, height, width), dtype=torch.int8)
        pairs = new_map((num_items, 2 * channels, height, width), features1)
        size = (channels, height, width, num_tiles)
        _build[(num_items * num_tiles,)](
            features1, features2, pairs, visible, *size, radius=radius, **shape
        )
        ctx.save_for_backward(visible)
        ctx.radius = radius
        return pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (visible,) = ctx.saved_tensors
        batch, height, width = visible.shape
        channels = gradient.shape[1] // 2
        gradient, stride = in_rows(gradient)
        num_tiles, shape = _tiles(channels, height * width)
        gradients = [new_map((batch, channels, height, width), gradient) for _ in range(2)]
        size = (channels, height, width, num_tiles, stride)
        _collect[(batch * num_tiles,)](
            gradient, visible, *gradients, *size, radius=ctx.radius, **shape
        )
        return (*gradients, None)


def pair_windows(features1: Tensor, features2: Tensor, radius: int) -> Tensor:
    """Two (B, C, H, W) maps -> (B·U·V, 2C, H, W), all channels last.

    Each pixel of `features1` concatenated with the pixel of `features2` at distance (u, v); both
    zero where the latter is outside the image or all zero.
    """
    check(features1)
    check(features2)
    if features1.shape != features2.shape or features1.dtype != features2.dtype:
        raise InputError(
            f"both feature maps must have one shape and precision, got {tuple(features1.shape)} "
            f"{features1.dtype} and {tuple(features2.shape)} {features2.dtype}"
        )
    return _PairWindows.apply(features1, features2, radius)
