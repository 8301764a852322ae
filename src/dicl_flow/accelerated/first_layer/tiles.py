"""Tiles of the first layer in training, computed from its two terms wherever they are needed.

A program takes some channels of a tile of pixels and goes through all displacements: the factor
of one frame stays in registers, that of the other moves, and comes out of the cache. A tile is
calm where both see all nine taps for every displacement; elsewhere `layer` also looks at what is
visible and, for few places, at what `correct` has written.

`parts` (2B, channels, H+2r, W+2r) and `seen` (2B, H+2r, W+2r) hold frame 2 first, then frame 1;
so does `restless` (2B, H, W), which is zero where a pixel of the other frame is calm.

Behind the gradients are two sums over all displacements. With g_u(p) the gradient of the layer at
pixel p for displacement u, each tap t of the window has two, where p and p+t are in the image:

    sum1_t(p+t) = Σ g_u(p)   where F2(p+t+u) is visible
    sum2_t(q+t) = Σ g_u(p)   of p = q-u

Where batch norm and ReLU follow, g is computed from the gradient behind them and never written.
"""

from ..batch_norm import averages, before_relu, parameters, put_moments, put_sums, relu
from ..kernels import kernel, tl, triton

ALL = tl.constexpr(511)  # nine taps
_STAGES = tl.constexpr(5)  # displacements that are loaded at a time
_AT_ONCE = tl.constexpr(7)  # displacements in a row, where all that is loaded is in the cache


@triton.jit
def inside(y, x, height, width):
    """Whether a pixel is in the image."""
    return (y >= 0) & (y < height) & (x >= 0) & (x < width)


@triton.jit
def block(channels: tl.constexpr, columns: tl.constexpr):
    """Of this program: the number of its group, the number of groups, and its channels.

    The programs of a tile follow each other: what one has loaded, the others find in the cache.
    """
    blocks: tl.constexpr = (channels + columns - 1) // columns
    column = tl.program_id(0) % blocks * columns + tl.arange(0, columns)[None, :]
    return tl.program_id(0) // blocks, tl.num_programs(0) // blocks, column


@triton.jit
def pixels(number, height, width, ring: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr):
    """Image, rows and columns of a tile; tiles cover each image and a `ring` around it."""
    across, down = tl.cdiv(width + 2 * ring, wide), tl.cdiv(height + 2 * ring, tall)
    place = tl.arange(0, tall * wide)
    y = number // across % down * tall + place // wide - ring
    return number // (across * down), y, number % across * wide + place % wide - ring


@triton.jit
def is_calm(restless, item, y, x, height, width):
    """Whether all pixels of a tile are, with `item` the map that moves."""
    near = inside(y, x, height, width)
    return tl.max(tl.load(restless + (item * height + y) * width + x, near, 1.0), 0) == 0


@triton.jit
def _in_map(item, y, x, height, width, radius: tl.constexpr):
    """Index of a pixel in `seen`."""
    row = (item * (height + 2 * radius) + y + radius).to(tl.int64)
    return row * (width + 2 * radius) + x + radius


@triton.jit
def new_tile(seen, second, image, y, x, batch, height, width, radius: tl.constexpr):
    """Pixels of frame 1, whose matches move; or of frame 2, where frame 1 moves: the `second`.

    Their places where they stay, in the other map, and in the layer, for no displacement; and
    what they see.
    """
    stays = _in_map((1 - second) * batch + image, y, x, height, width, radius)
    moves = _in_map(second * batch + image, y, x, height, width, radius)
    home = (image * height + y).to(tl.int64) * width + x
    known = inside(y + radius, x + radius, height + 2 * radius, width + 2 * radius)
    taps = tl.load(seen + stays, known, 0).to(tl.int32)
    return (stays, moves, home), (taps, known, seen), (second, y, x, batch, height, width)


@triton.jit
def new_factors(parts, corrected, tile, column, channels: tl.constexpr):
    """Of a tile: the factor that stays, and addresses of the one that moves and of the layer."""
    stays, moves, home = tile[0]
    known = tile[1][1][:, None] & (column < channels)
    given = tl.load(parts + stays[:, None] * channels + column, known, 0.0).to(tl.float32)
    moving = parts + moves[:, None] * channels + column
    return given, moving, corrected + home[:, None] * channels + column


@triton.jit
def step(index, tile, radius: tl.constexpr, calm: tl.constexpr):
    """How far displacement `index` is in the layer and in the map that moves.

    Also the taps there, and which pixels are in the image.
    """
    taps, _, seen = tile[1]
    second, y, x, batch, height, width = tile[2]
    side: tl.constexpr = 2 * radius + 1
    u, v = index // side - radius, index % side - radius
    ahead = (index * batch).to(tl.int64) * height * width - second * (v * width + u)
    # frame 1 looks from a pixel to its match, frame 2 the other way
    aside = (1 - 2 * second) * (v * (width + 2 * radius) + u)
    if calm:
        there = taps == ALL  # all are
        bits = taps
    else:
        there = inside(y - second * v, x - second * u, height, width)
        bits = tl.load(seen + tile[0][1] + aside, there, 0).to(tl.int32)
    return ahead, aside, bits, there[:, None]


@triton.jit
def layer(ahead, aside, bits, mask, tile, factors, channels: tl.constexpr, calm: tl.constexpr):
    """The layer of a tile after a `step`, in float32."""
    given, moving, corrected = factors
    value = given + tl.load(moving + aside * channels, mask, 0.0).to(tl.float32)
    if not calm:
        taps, second = tile[1][0], tile[2][0]
        visible = tl.where(second == 1, taps, bits)  # of frame 2
        value = tl.where((visible == 0)[:, None], 0.0, value)
        partial = ((visible != 0) & ((taps & bits) != ALL))[:, None]  # the places of `correct`
        exact = tl.load(corrected + ahead * channels, partial & mask, 0.0).to(tl.float32)
        value = tl.where(partial, exact, value)
    return value


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
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=_STAGES):
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
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=_STAGES):
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
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=_STAGES):
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
