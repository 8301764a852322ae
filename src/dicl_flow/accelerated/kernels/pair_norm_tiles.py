"""The kernels of `norm_relu` for the matching net's first layer, which is never written.

Each takes the tiles of `pair_tiles.py`, of frame 1; for batch norm, see `norm_tiles.py`.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl

from .launching import kernel
from .norm_tiles import before_relu, parameters, put_moments, put_sums, relu
from .pair_tiles import (
    STAGES,
    block,
    inside,
    is_calm,
    layer,
    new_factors,
    new_tile,
    pixels,
    step,
)

_AT_ONCE = tl.constexpr(7)  # displacements in a row, where all that is loaded is in the cache


@triton.jit
def _tile_moments(tile, factors, known, radius: tl.constexpr, channels: tl.constexpr, calm):
    """Mean and squared deviations of each place over all displacements, by Welford's update."""
    mean, squares = tl.zeros_like(factors[0]), tl.zeros_like(factors[0])
    displacements: tl.constexpr = (2 * radius + 1) * (2 * radius + 1)
    for index in tl.range(displacements, num_stages=1, loop_unroll_factor=_AT_ONCE):
        ahead, aside, bits, there = step(index, tile, radius, calm)
        value = layer(ahead, aside, bits, there & known, tile, factors, channels, calm)
        delta = value - mean
        mean += delta * (1.0 / (index + 1.0))
        squares += delta * (value - mean)
    return mean, squares


@kernel(do_not_specialize=["batch", "height", "width"])
def moments(
    parts,
    seen,
    corrected,
    restless,
    partial,
    batch,
    height,
    width,
    radius: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    columns: tl.constexpr,
):
    """Size, mean and squared deviations of every `groups`-th tile: `partial` (3, groups, C)."""
    group, groups, column = block(channels, columns)
    known = column < channels
    mean = tl.zeros((tall * wide, columns), tl.float32)
    squares = tl.zeros((tall * wide, columns), tl.float32)
    count = tl.zeros((tall * wide, 1), tl.float32)
    for number in range(group, batch * tl.cdiv(height, tall) * tl.cdiv(width, wide), groups):
        image, y, x = pixels(number, height, width, 0, tall, wide)
        tile = new_tile(seen, 0, image, y, x, batch, height, width, radius)
        factors = new_factors(parts, corrected, tile, column, channels)
        if is_calm(restless, image, y, x, height, width):
            joined, spread = _tile_moments(tile, factors, known, radius, channels, True)
        else:
            joined, spread = _tile_moments(tile, factors, known, radius, channels, False)
        more = tl.where(inside(y, x, height, width), (2 * radius + 1) * (2 * radius + 1), 0)
        more = more.to(tl.float32)[:, None]
        share = more / tl.maximum(count + more, 1.0)
        delta = joined - mean  # two groups become one (Chan et al.)
        mean += delta * share
        squares += spread + delta * delta * (count * share)
        count += more
    put_moments(partial, count, mean, squares, group, groups, column, channels)


@triton.jit
def _normalize(
    target, norm, tile, factors, known, radius: tl.constexpr, channels: tl.constexpr, calm
):
    mean, factor, shift = norm
    displacements: tl.constexpr = (2 * radius + 1) * (2 * radius + 1)
    for index in tl.range(displacements, num_stages=1, loop_unroll_factor=_AT_ONCE):
        ahead, aside, bits, there = step(index, tile, radius, calm)
        value = layer(ahead, aside, bits, there & known, tile, factors, channels, calm)
        value = relu((value - mean) * factor + shift).to(target.dtype.element_ty)
        tl.store(target + ahead * channels, value, there & known)


@kernel(do_not_specialize=["batch", "height", "width"])
def normalize(
    parts,
    seen,
    corrected,
    restless,
    result,
    statistics,
    weight,
    bias,
    batch,
    height,
    width,
    radius: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    columns: tl.constexpr,
):
    """A tile of the normalised layer after the ReLU: `result` (U·V·B, channels, H, W)."""
    number, _, column = block(channels, columns)
    known = column < channels
    norm = parameters(statistics, weight, bias, column, channels)
    image, y, x = pixels(number, height, width, 0, tall, wide)
    tile = new_tile(seen, 0, image, y, x, batch, height, width, radius)
    factors = new_factors(parts, corrected, tile, column, channels)
    target = result + tile[0][2][:, None] * channels + column
    if is_calm(restless, image, y, x, height, width):
        _normalize(target, norm, tile, factors, known, radius, channels, True)
    else:
        _normalize(target, norm, tile, factors, known, radius, channels, False)


@triton.jit
def _tile_sums(source, stride, norm, tile, factors, known, radius: tl.constexpr, channels, calm):
    """Sums of the gradient and of gradient·centred of each place over all displacements."""
    plain, weighted = tl.zeros_like(factors[0]), tl.zeros_like(factors[0])
    mean, factor, shift = norm
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=STAGES):
        ahead, aside, bits, there = step(index, tile, radius, calm)
        value = layer(ahead, aside, bits, there & known, tile, factors, channels, calm)
        incoming = tl.load(source + ahead * stride, there & known, 0.0)
        centred, passed = before_relu(value, incoming, mean, factor, shift)
        plain += passed
        weighted += passed * centred
    return plain, weighted


@kernel(do_not_specialize=["batch", "height", "width"])
def gradient_sums(
    parts,
    seen,
    corrected,
    restless,
    gradient,
    partial,
    statistics,
    weight,
    bias,
    batch,
    height,
    width,
    stride,
    radius: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    columns: tl.constexpr,
):
    """Sums of the gradient and of gradient·centred of a tile: `partial` (2, tiles, C)."""
    number, tiles, column = block(channels, columns)
    known = column < channels
    norm = parameters(statistics, weight, bias, column, channels)
    image, y, x = pixels(number, height, width, 0, tall, wide)
    tile = new_tile(seen, 0, image, y, x, batch, height, width, radius)
    factors = new_factors(parts, corrected, tile, column, channels)
    source = gradient + tile[0][2][:, None] * stride + column
    given = (source, stride, norm, tile, factors, known, radius, channels)
    if is_calm(restless, image, y, x, height, width):
        plain, weighted = _tile_sums(*given, True)
    else:
        plain, weighted = _tile_sums(*given, False)
    put_sums(partial, plain, weighted, number, tiles, column, channels)
