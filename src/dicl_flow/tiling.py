"""Frames that are too large for the memory, in overlapping pieces."""

from collections.abc import Callable
from math import isqrt, prod

import torch
from torch import Tensor

from .errors import InputError
from .feeding import Feeding, Size

OVERLAP = 128  # px that neighbours share, a multiple of every network's; there they are blended


def tile_size(size: tuple[int, int], capacity: int, multiple: int) -> tuple[int, int]:
    """Return the tile (height, width) for frames of `size`: all of it where `capacity` px suffice.

    Else near a square, of sides that are multiples of `multiple`.
    """
    height, width = (-(-side // multiple) * multiple for side in size)
    if height * width <= capacity:
        return size
    tile_height = min(height, isqrt(capacity) // multiple * multiple)
    tile_width = min(width, capacity // max(tile_height, 1) // multiple * multiple)
    tile_height = min(height, capacity // max(tile_width, 1) // multiple * multiple)
    if min(tile_height, tile_width) < min(2 * OVERLAP, height, width):
        raise InputError(
            f"too little memory: {capacity} px fit at a time, and tiles need at least "
            f"{2 * OVERLAP} px a side; raise memory_limit, or use smaller frames or batches"
        )
    return tile_height, tile_width


def tile_at_scale(size: Size, capacity: int, feeding: Feeding) -> Size:
    """The same where `capacity` counts the pixels that the network sees, by `feeding`."""
    config = feeding.config
    if config.max_pixels:
        if prod(feeding.seen(size)) <= capacity:
            return size
        if prod(size) > config.max_pixels:  # tiles would not be scaled down as the frame is
            height, width = feeding.seen(size)
            raise InputError(
                f"too little memory: {capacity} px fit at a time, and the network is to see frames "
                f"of {width}x{height}; raise memory_limit, or use quality 'normal'"
            )
    return tile_size(size, int(capacity / feeding.scale**2), config.pad_multiple)


def in_tiles(
    estimate: Callable[..., Tensor],
    image1: Tensor,
    image2: Tensor,
    tile: tuple[int, int],
    *more: Tensor,
) -> Tensor:
    """Run `estimate` on tiles of (B, C, H, W) images, and of `more`, and blend: (B, K, H, W)."""
    size = (image1.shape[-2], image1.shape[-1])
    inputs = (image1, image2, *more)
    if tile[0] >= size[0] and tile[1] >= size[1]:
        return estimate(*inputs)
    total, weights = image1.new_zeros(()), image1.new_zeros(size)
    for top in _starts(size[0], tile[0]):
        for left in _starts(size[1], tile[1]):
            part = (..., slice(top, top + tile[0]), slice(left, left + tile[1]))
            result = estimate(*(tensor[part] for tensor in inputs))
            if not total.ndim:
                total = result.new_zeros(*result.shape[:2], *size)
            weight = _fade(result)
            total[part] += result * weight
            weights[part] += weight
    return total / weights


def _starts(length: int, tile: int) -> list[int]:
    """Where tiles begin: on the grid of the feature net, as in the whole frame.

    The last one overlaps more rather than being narrower.
    """
    last = max(0, -(-(length - tile) // OVERLAP) * OVERLAP)
    return [*range(0, last, tile - OVERLAP), last]


def _fade(tile: Tensor) -> Tensor:
    """(H, W) weights that rise from each border to one at `OVERLAP`."""
    ramps = []
    for side in tile.shape[-2:]:
        position = torch.arange(side, device=tile.device) + 0.5
        ramps.append(torch.minimum(position, side - position).clamp(max=OVERLAP) / OVERLAP)
    return ramps[0][:, None] * ramps[1]
