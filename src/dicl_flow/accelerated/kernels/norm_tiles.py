"""The kernels behind `norm_relu`.

All use a channels-last tensor as rows, one for each pixel, in tiles of rows: program p of P takes
the tiles p, p + P, p + 2P …, and loads a few of them in advance.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl

_STAGES = tl.constexpr(3)  # tiles that are loaded at a time


@triton.jit
def _merge(count, mean, squares):
    """Merge groups along axis 0: sizes, means and sums of squared deviations (Chan et al.)."""
    total = tl.maximum(tl.sum(count, 0), 1.0)  # columns after the last channel are empty
    joint = tl.sum(count * mean, 0) / total
    deviation = mean - joint[None, :]
    return total, joint, tl.sum(squares + count * deviation * deviation, 0)


@triton.jit
def put_moments(partial, count, mean, squares, program, num_programs, column, channels):
    """Merge the places of a tile, and store them as those of a program: `partial` (3, P, C)."""
    total, joint, deviations = _merge(count, mean, squares)
    place = partial + program * channels + column
    plane = num_programs * channels
    tl.store(place, (total + tl.zeros_like(joint))[None, :], column < channels)
    tl.store(place + plane, joint[None, :], column < channels)
    tl.store(place + 2 * plane, deviations[None, :], column < channels)


@triton.jit
def put_sums(partial, plain, weighted, program, num_programs, column, channels):
    """Add the places of a tile, and store them as those of a program: `partial` (2, P, C)."""
    place = partial + program * channels + column
    tl.store(place, tl.sum(plain, 0)[None, :], column < channels)
    place += num_programs * channels
    tl.store(place, tl.sum(weighted, 0)[None, :], column < channels)


@triton.jit
def moments(x, partial, num_rows, channels, rows: tl.constexpr, columns: tl.constexpr):
    """Size, mean and squared deviations of every `num_programs`-th tile: `partial` (3, P, C)."""
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    mean = tl.zeros((rows, columns), tl.float32)
    squares = tl.zeros((rows, columns), tl.float32)
    count = tl.zeros((rows, 1), tl.float32)
    steps = 0.0
    for step in tl.range(tl.cdiv(num_rows, rows * num_programs), num_stages=_STAGES):
        first = (step * num_programs + program) * rows
        inside = first + row < num_rows
        mask = inside & (column < channels)
        value = tl.load(x + first * channels + row * channels + column, mask, 0.0).to(tl.float32)
        # Welford's update, one running mean per place in the tile; only the last step of a
        # place can be outside, so that `steps` is the size of every group that still grows
        steps += 1.0
        delta = tl.where(inside, value - mean, 0.0)
        mean += delta * (1.0 / steps)
        squares += delta * (value - mean)
        count += inside.to(tl.float32)
    put_moments(partial, count, mean, squares, program, num_programs, column, channels)


@triton.jit
def merge_moments(
    partial,
    statistics,
    running_mean,
    running_variance,
    batches,
    num_partials,
    channels,
    momentum,
    eps,
    groups: tl.constexpr,
    columns: tl.constexpr,
):
    """Merge `partial` into `statistics` (2, C): mean, 1/deviation; update the running ones."""
    group = tl.arange(0, groups)[:, None]
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    place = partial + group * channels + column[None, :]
    mask = (group < num_partials) & (column[None, :] < channels)
    plane = num_partials * channels
    total, mean, squares = _merge(
        tl.load(place, mask, 0.0),
        tl.load(place + plane, mask, 0.0),
        tl.load(place + 2 * plane, mask, 0.0),
    )
    mask = column < channels
    tl.store(statistics + column, mean, mask)
    tl.store(statistics + channels + column, 1.0 / tl.sqrt(squares / total + eps), mask)
    old_mean = tl.load(running_mean + column, mask)
    old_variance = tl.load(running_variance + column, mask)
    variance = squares / tl.maximum(total - 1.0, 1.0)
    tl.store(running_mean + column, old_mean + momentum * (mean - old_mean), mask)
    tl.store(running_variance + column, old_variance + momentum * (variance - old_variance), mask)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def parameters(statistics, weight, bias, column, channels):
    """Mean, factor and shift of the normalisation (x - mean)·factor + shift."""
    mask = column < channels
    mean = tl.load(statistics + column, mask, 0.0)
    inverse = tl.load(statistics + channels + column, mask, 0.0)
    factor = inverse * tl.load(weight + column, mask, 0.0)
    shift = tl.load(bias + column, mask, 0.0)
    return mean, factor, shift


@triton.jit
def averages(sums, statistics, column, channels, num_rows):
    """The mean of the gradient, and the slope of its fit to the input: both do not reach it."""
    mask = column < channels
    plain = tl.load(sums + column, mask, 0.0) / num_rows
    inverse = tl.load(statistics + channels + column, mask, 0.0)
    return plain, tl.load(sums + channels + column, mask, 0.0) * inverse / num_rows


@triton.jit
def relu(value):
    """Keeps NaN, as torch's does."""
    return tl.where(value < 0.0, 0.0, value)


@triton.jit
def before_relu(value, gradient, mean, factor, shift):
    """Input minus mean, and the gradient before the ReLU."""
    centred = value - mean
    dead = centred * factor + shift <= 0.0
    return centred, tl.where(dead, 0.0, gradient.to(tl.float32))


@triton.jit
def normalize(
    x,
    y,
    statistics,
    weight,
    bias,
    num_rows,
    channels,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """The normalised input after the ReLU: `y`, like `x`."""
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    mean, factor, shift = parameters(statistics, weight, bias, column, channels)
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for step in tl.range(tl.cdiv(num_rows, rows * num_programs), num_stages=_STAGES):
        first = (step * num_programs + program) * rows
        mask = (first + row < num_rows) & (column < channels)
        place = first * channels + row * channels + column
        value = tl.load(x + place, mask, 0.0).to(tl.float32)
        result = relu((value - mean) * factor + shift)
        tl.store(y + place, result.to(y.dtype.element_ty), mask)


@triton.jit
def _tile_gradient(
    x, gradient, first, row, column, mean, factor, shift, num_rows, channels, stride
):
    """Input minus mean of the tile that starts at row `first`, and the gradient before the ReLU."""
    mask = (first + row < num_rows) & (column < channels)
    value = tl.load(x + first * channels + row * channels + column, mask, 0.0).to(tl.float32)
    incoming = tl.load(gradient + first * stride + row * stride + column, mask, 0.0)
    centred, passed = before_relu(value, incoming, mean, factor, shift)
    return centred, passed, mask


@triton.jit
def gradient_sums(
    x,
    gradient,
    partial,
    statistics,
    weight,
    bias,
    num_rows,
    channels,
    stride,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Sums of the gradient and of gradient·centred over this program's tiles: (2, P, C)."""
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    mean, factor, shift = parameters(statistics, weight, bias, column, channels)
    plain = tl.zeros((rows, columns), tl.float32)
    weighted = tl.zeros((rows, columns), tl.float32)
    for step in tl.range(tl.cdiv(num_rows, rows * num_programs), num_stages=_STAGES):
        first = (step * num_programs + program) * rows
        centred, passed, _ = _tile_gradient(
            x, gradient, first, row, column, mean, factor, shift, num_rows, channels, stride
        )
        plain += passed
        weighted += passed * centred
    put_sums(partial, plain, weighted, program, num_programs, column, channels)


@triton.jit
def parameter_gradients(
    partial,
    sums,
    statistics,
    num_partials,
    channels,
    groups: tl.constexpr,
    columns: tl.constexpr,
):
    """(2, P, C) -> `sums` (2, C): the gradients of bias and weight."""
    group = tl.arange(0, groups)[:, None]
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    place = partial + (tl.program_id(1) * num_partials + group) * channels + column[None, :]
    mask = (group < num_partials) & (column[None, :] < channels)
    total = tl.sum(tl.load(place, mask, 0.0), 0)
    if tl.program_id(1) == 1:
        total *= tl.load(statistics + channels + column, column < channels, 0.0)
    tl.store(sums + tl.program_id(1) * channels + column, total, column < channels)


@triton.jit
def input_gradient(
    x,
    gradient,
    result,
    sums,
    statistics,
    weight,
    bias,
    num_rows,
    channels,
    stride,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """The gradient of the input, from that of the output and its `sums` (2, C)."""
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    mean, factor, shift = parameters(statistics, weight, bias, column, channels)
    plain, slope = averages(sums, statistics, column, channels, num_rows)
    program, num_programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for step in tl.range(tl.cdiv(num_rows, rows * num_programs), num_stages=_STAGES):
        first = (step * num_programs + program) * rows
        centred, passed, mask = _tile_gradient(
            x, gradient, first, row, column, mean, factor, shift, num_rows, channels, stride
        )
        value = (passed - plain - centred * slope) * factor
        place = result + first * channels + row * channels + column
        tl.store(place, value.to(result.dtype.element_ty), mask)
