"""Frames that are too large for the memory, in overlapping pieces."""

from collections.abc import Callable
from math import isqrt

import torch
from torch import Tensor

OVERLAP = 128  # px that neighbours share, a multiple of every network's; there they are blended


def smallest_tile(size: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Return the least (height, width) that frames of `size` can be cut into."""
    height, width = (min(2 * OVERLAP, side) for side in size)
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def tile_size(size: tuple[int, int], capacity: int, multiple: int) -> tuple[int, int]:
    """Return the tile (height, width) for frames of `size`: all of it where `capacity` px suffice.

    Else near a square, of sides that are multiples of `multiple`. The capacity is that of the
    smallest tile at least.
    """
    height, width = (-(-side // multiple) * multiple for side in size)
    if height * width <= capacity:
        return size
    least_height, least_width = smallest_tile(size, multiple)
    tile_height = min(height, max(isqrt(capacity) // multiple * multiple, least_height))
    tile_width = min(width, max(capacity // tile_height // multiple * multiple, least_width))
    return min(height, capacity // tile_width // multiple * multiple), tile_width


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
    return [*range(0, last, max(tile - OVERLAP, 1)), last]


def _fade(tile: Tensor) -> Tensor:
    """(H, W) weights that rise from each border to one at `OVERLAP`."""
    ramps = []
    for side in tile.shape[-2:]:
        position = torch.arange(side, device=tile.device) + 0.5
        ramps.append(torch.minimum(position, side - position).clamp(max=OVERLAP) / OVERLAP)
    return ramps[0][:, None] * ramps[1]
