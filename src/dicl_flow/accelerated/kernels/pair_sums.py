"""The two sums over all displacements behind the gradients of the matching net's first layer.

With g_u(p) the gradient of the layer at pixel p for displacement u, each tap t of the window has
two sums, where p and p+t are in the image:

    sum1_t(p+t) = Σ g_u(p)   where F2(p+t+u) is visible
    sum2_t(q+t) = Σ g_u(p)   of p = q-u

Where batch norm and ReLU follow, g is computed from the gradient behind them and never written.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl

from .launching import kernel
from .norm_tiles import averages, before_relu, parameters
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


@triton.jit
def _gradient(
    index,
    source,
    stride,
    tile,
    factors,
    norm,
    known,
    radius: tl.constexpr,
    channels: tl.constexpr,
    normed: tl.constexpr,
    calm: tl.constexpr,
):
    """The gradient of the layer but for the norm's factor, and the taps of the moving frame."""
    ahead, aside, bits, there = step(index, tile, radius, calm)
    value = tl.load(source + ahead * stride, there & known, 0.0).to(tl.float32)
    if normed:
        mean, factor, shift, plain, slope = norm
        found = layer(ahead, aside, bits, there & known, tile, factors, channels, calm)
        centred, passed = before_relu(found, value, mean, factor, shift)
        value = passed - plain - centred * slope
    return value, bits[:, None]


@triton.jit
def _all_taps(nothing, source, radius: tl.constexpr, channels: tl.constexpr, normed: tl.constexpr):
    """Nine sums, each of the displacements for which its tap is visible."""
    total = (nothing,) * 9
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=STAGES):
        value, bits = _gradient(index, *source, radius, channels, normed, False)
        total = (
            total[0] + tl.where((bits & 1) != 0, value, 0.0),
            total[1] + tl.where((bits & 2) != 0, value, 0.0),
            total[2] + tl.where((bits & 4) != 0, value, 0.0),
            total[3] + tl.where((bits & 8) != 0, value, 0.0),
            total[4] + tl.where((bits & 16) != 0, value, 0.0),
            total[5] + tl.where((bits & 32) != 0, value, 0.0),
            total[6] + tl.where((bits & 64) != 0, value, 0.0),
            total[7] + tl.where((bits & 128) != 0, value, 0.0),
            total[8] + tl.where((bits & 256) != 0, value, 0.0),
        )
    return total


@triton.jit
def _one_sum(nothing, source, radius: tl.constexpr, channels: tl.constexpr, normed: tl.constexpr):
    """All taps are visible for all displacements: nine equal sums."""
    once = nothing
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=STAGES):
        once += _gradient(index, *source, radius, channels, normed, True)[0]
    return (once,) * 9


# Apart for calm tiles and others: nine sums need more registers, so that less is loaded at a time.
@kernel(do_not_specialize=["batch", "height", "width"])
def sum_displacements(
    parts,
    seen,
    corrected,
    restless,
    gradient,
    sums,
    statistics,
    weight,
    bias,
    norm_sums,
    batch,
    height,
    width,
    stride,
    radius: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    columns: tl.constexpr,
    calm: tl.constexpr,
):
    """One of the two sums, all nine taps, of a tile of pixels of the image and the ring around it.

    Without a norm, `parts`, `corrected` and all of the norm are None.
    """
    group, _, column = block(channels, columns)
    second, known = group % 2, column < channels
    image, y, x = pixels(group // 2, height, width, 1, tall, wide)
    item = second * batch + image
    if is_calm(restless, item, y, x, height, width) == calm:
        tile = new_tile(seen, second, image, y, x, batch, height, width, radius)
        source = gradient + tile[0][2][:, None] * stride + column
        if parts is None:
            factor = 1.0
            source = (source, stride, tile, (), (), known)
        else:
            mean, factor, shift = parameters(statistics, weight, bias, column, channels)
            rows = (2 * radius + 1) * (2 * radius + 1) * batch * height * width
            plain, slope = averages(norm_sums, statistics, column, channels, rows)
            norm = (mean, factor, shift, plain, slope)
            factors = new_factors(parts, corrected, tile, column, channels)
            source = (source, stride, tile, factors, norm, known)
        nothing = tl.zeros((tall * wide, columns), tl.float32)
        if calm:
            total = _one_sum(nothing, source, radius, channels, parts is not None)
        else:
            total = _all_taps(nothing, source, radius, channels, parts is not None)
        for tap in tl.static_range(9):
            row, line = y + tap // 3 - 1, x + tap % 3 - 1
            target = ((item * height + row).to(tl.int64) * width + line) * 9 + tap
            target = sums + target[:, None] * channels + column
            mask = inside(row, line, height, width)[:, None] & known
            tl.store(target, (total[tap] * factor).to(sums.dtype.element_ty), mask)
