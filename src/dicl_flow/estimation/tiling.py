"""Frames that are too large for the memory, in overlapping tiles."""

from collections.abc import Callable
from math import isqrt, prod

import torch
from torch import Tensor

from ..accelerated import check_limit, fixed_bytes
from .engines import Engine
from .feeding import Size, size_of
from .plan import Plan

OVERLAP = 128  # px over which neighbours are blended, a multiple of what every network takes


class Tiles:
    """The tiles in which an engine computes frames, for the memory that it may use."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine, self._plan = engine, plan
        self._sizes: dict[torch.Size, Size] = {}

    def size(self, image: Tensor) -> Size:
        """Tiles (height, width) of a pair like (B, 3, H, W) `image`: all of it, if it fits."""
        if image.shape not in self._sizes:  # asking for free memory takes time
            self._sizes[image.shape] = self._find(image)
        return self._sizes[image.shape]

    def at_once(self, size: Size) -> int:
        """How many pairs of frames of `size` to compute at a time: what is faster, and fits."""
        needed = self._engine.bytes_per_pixel() * prod(self._plan.largest.seen(size))
        return max(1, self._engine.pairs_at_once(self._engine.compute.memory // needed))

    def _find(self, image: Tensor) -> Size:
        compute, feeding, size = self._engine.compute, self._plan.largest, size_of(image)
        fixed = fixed_bytes(image, compute.device)
        per_pixel = len(image) * self._engine.bytes_per_pixel()
        free = compute.memory
        if feeding.max_pixels:  # such frames are scaled, not cut
            needed = fixed + per_pixel * prod(feeding.seen(size))
            hint = "; `full_size=True` computes tiles, which need less"
            limit = free if feeding.scale > 1 else compute.memory_limit or needed
            check_limit(limit, needed, describe(image), hint)
            return size
        if self._plan.is_large(size):  # the first pass sees the whole frame
            seen = self._plan.first.feedings[0].seen(size)
            check_limit(free, fixed + per_pixel * prod(seen), describe(image))
        per_pixel = int(per_pixel * feeding.scale**2)
        needed = fixed + per_pixel * prod(smallest_tile(size, feeding.multiple))
        check_limit(free, needed, describe(image))
        return tile_size(size, (free - fixed) // per_pixel, feeding.multiple)


def describe(batch: Tensor) -> str:
    """Number and size of (B, C, H, W) frames, for messages."""
    count = f"{len(batch)} x " if len(batch) > 1 else ""
    return f"{count}{batch.shape[-1]}x{batch.shape[-2]}"


def smallest_tile(size: Size, multiple: int) -> Size:
    """Return the (height, width) of the smallest tile of frames of `size`."""
    height, width = (min(2 * OVERLAP, side) for side in size)
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def tile_size(size: Size, capacity: int, multiple: int) -> Size:
    """Return the tile (height, width) for frames of `size`: all of it where `capacity` px suffice.

    Otherwise nearly square, with sides that are multiples of `multiple`. The capacity is at least
    that of the smallest tile.
    """
    height, width = (-(-side // multiple) * multiple for side in size)
    if height * width <= capacity:
        return size
    least_height, least_width = smallest_tile(size, multiple)
    tile_height = min(height, max(isqrt(capacity) // multiple * multiple, least_height))
    tile_width = min(width, max(capacity // tile_height // multiple * multiple, least_width))
    return min(height, capacity // tile_width // multiple * multiple), tile_width


def in_tiles(compute: Callable[..., Tensor], tile: Size, *inputs: Tensor) -> Tensor:
    """Run `compute` on tiles of (B, C, H, W) inputs and blend what it gives: (B, K, H, W)."""
    size = size_of(inputs[0])
    if tile[0] >= size[0] and tile[1] >= size[1]:
        return compute(*inputs)
    total, weights = inputs[0].new_zeros(()), inputs[0].new_zeros(size)
    for top in _starts(size[0], tile[0]):
        for left in _starts(size[1], tile[1]):
            part = (..., slice(top, top + tile[0]), slice(left, left + tile[1]))
            result = compute(*(tensor[part] for tensor in inputs))
            if not total.ndim:
                total = result.new_zeros(*result.shape[:2], *size)
            weight = _fade(result)
            total[part] += result * weight
            weights[part] += weight
    return total / weights


def _starts(length: int, tile: int) -> list[int]:
    """Where tiles start: on the grid of the feature net, as in the whole frame.

    The last one overlaps more instead of being narrower.
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
