"""Tiles of the first layer in training, computed from its two terms wherever they are needed.

A program takes some channels of a tile of pixels and goes through all displacements: the term of
one frame is fixed and stays in registers, that of the other moves, and comes out of the cache. A
tile is whole where both frames see all nine taps for every displacement; elsewhere `layer` also
looks at what is visible and, for partial windows, at what `correct` has written.

`term_maps` (2B, channels, H+2r, W+2r) and `seen` (2B, H+2r, W+2r) hold frame 2 first, then frame 1;
so does `lacking` (2B, H, W), zero where windows of the other frame are whole for all displacements.

Behind the gradients are two sums over all displacements. With g_u(p) the gradient of the layer at
pixel p for displacement u, each tap t of the window has two, where p and p+t are in the image:

    sum1_t(p+t) = Σ g_u(p)   where F2(p+t+u) is visible
    sum2_t(q+t) = Σ g_u(p)   of p = q-u

Where batch norm and ReLU follow, g is computed from the gradient behind them and never written.
"""

from ..batch_norm import averages, before_relu, parameters, put_moments, put_sums, relu
from ..kernels import kernel, tl, triton
from .cuda import ALL

_STAGES = tl.constexpr(5)  # displacements that are loaded at a time
_AT_ONCE = tl.constexpr(7)  # displacements in a row, where all that is loaded is in the cache


@triton.jit
def _inside(y, x, height, width):
    return (y >= 0) & (y < height) & (x >= 0) & (x < width)


@triton.jit
def _group(channels: tl.constexpr, columns: tl.constexpr):
    """Of this program: the number of its group, the number of groups, and its channels."""
    # the programs of a tile follow each other: what one has loaded, the others find in the cache
    blocks: tl.constexpr = (channels + columns - 1) // columns
    column = tl.program_id(0) % blocks * columns + tl.arange(0, columns)[None, :]
    return tl.program_id(0) // blocks, tl.num_programs(0) // blocks, column


@triton.jit
def _pixels(number, height, width, ring: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr):
    """Image, rows and columns of a tile; tiles cover each image and a `ring` around it."""
    across, down = tl.cdiv(width + 2 * ring, wide), tl.cdiv(height + 2 * ring, tall)
    place = tl.arange(0, tall * wide)
    y = number // across % down * tall + place // wide - ring
    return number // (across * down), y, number % across * wide + place % wide - ring


@triton.jit
def _is_whole(lacking, item, y, x, height, width):
    """Whether all windows of a tile are whole, with `item` the map that moves."""
    near = _inside(y, x, height, width)
    return tl.max(tl.load(lacking + (item * height + y) * width + x, near, 1.0), 0) == 0


@triton.jit
def _map_index(item, y, x, height, width, radius: tl.constexpr):
    """Index of a pixel in `seen`."""
    row = (item * (height + 2 * radius) + y + radius).to(tl.int64)
    return row * (width + 2 * radius) + x + radius


@triton.jit
def _new_tile(seen, second, image, y, x, batch, height, width, radius: tl.constexpr):
    """Pixels of frame 1, whose matches move; or of frame 2, where frame 1 moves: the `second`.

    Their indices in the fixed map, the moving map and the layer, undisplaced; and what they see.
    """
    fixed = _map_index((1 - second) * batch + image, y, x, height, width, radius)
    moving = _map_index(second * batch + image, y, x, height, width, radius)
    in_layer = (image * height + y).to(tl.int64) * width + x
    known = _inside(y + radius, x + radius, height + 2 * radius, width + 2 * radius)
    taps = tl.load(seen + fixed, known, 0).to(tl.int32)
    return (fixed, moving, in_layer), (taps, known, seen), (second, y, x, batch, height, width)


@triton.jit
def _new_terms(term_maps, corrected, tile, column, channels: tl.constexpr):
    """Of a tile: the fixed term, and addresses of the moving one and of the corrected layer."""
    fixed, moving, in_layer = tile[0]
    known = tile[1][1][:, None] & (column < channels)
    fixed_term = tl.load(term_maps + fixed[:, None] * channels + column, known, 0.0).to(tl.float32)
    moving_term = term_maps + moving[:, None] * channels + column
    return fixed_term, moving_term, corrected + in_layer[:, None] * channels + column


@triton.jit
def _frame1_tile(
    maps,
    size,
    number,
    column,
    radius: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
):
    """A tile of frame 1, its terms, and whether it is whole."""
    term_maps, seen, corrected, lacking = maps
    batch, height, width = size
    image, y, x = _pixels(number, height, width, 0, tall, wide)
    tile = _new_tile(seen, 0, image, y, x, batch, height, width, radius)
    terms = _new_terms(term_maps, corrected, tile, column, channels)
    return tile, terms, _is_whole(lacking, image, y, x, height, width)


@triton.jit
def _step(index, tile, radius: tl.constexpr, whole: tl.constexpr):
    """How far displacement `index` is in layer and moving map; its taps; who is in the image."""
    taps, _, seen = tile[1]
    second, y, x, batch, height, width = tile[2]
    side: tl.constexpr = 2 * radius + 1
    u, v = index // side - radius, index % side - radius
    layer_step = (index * batch).to(tl.int64) * height * width - second * (v * width + u)
    # frame 1 looks from a pixel to its match, frame 2 the other way
    map_step = (1 - 2 * second) * (v * (width + 2 * radius) + u)
    if whole:
        there = taps == ALL  # all are
        bits = taps
    else:
        there = _inside(y - second * v, x - second * u, height, width)
        bits = tl.load(seen + tile[0][1] + map_step, there, 0).to(tl.int32)
    return layer_step, map_step, bits, there[:, None]


@triton.jit
def _layer(
    layer_step, map_step, bits, mask, tile, terms, channels: tl.constexpr, whole: tl.constexpr
):
    """The layer of a tile after a `_step`, in float32."""
    fixed_term, moving_term, corrected = terms
    value = fixed_term + tl.load(moving_term + map_step * channels, mask, 0.0).to(tl.float32)
    if not whole:
        taps, second = tile[1][0], tile[2][0]
        visible = tl.where(second == 1, taps, bits)  # of frame 2
        value = tl.where((visible == 0)[:, None], 0.0, value)
        partial = ((visible != 0) & ((taps & bits) != ALL))[:, None]  # what `correct` wrote
        exact = tl.load(corrected + layer_step * channels, partial & mask, 0.0).to(tl.float32)
        value = tl.where(partial, exact, value)
    return value


@triton.jit
def _layer_at(index, tile, terms, known, radius: tl.constexpr, channels: tl.constexpr, whole):
    """The layer of a tile for displacement `index`, how far that is in it, and which pixels."""
    layer_step, map_step, bits, there = _step(index, tile, radius, whole)
    value = _layer(layer_step, map_step, bits, there & known, tile, terms, channels, whole)
    return value, layer_step, there & known


@triton.jit
def _tile_moments(tile, terms, known, radius: tl.constexpr, channels: tl.constexpr, whole):
    """Mean and squared deviations of each place over all displacements, by Welford's update."""
    mean, squares = tl.zeros_like(terms[0]), tl.zeros_like(terms[0])
    displacements: tl.constexpr = (2 * radius + 1) * (2 * radius + 1)
    for index in tl.range(displacements, num_stages=1, loop_unroll_factor=_AT_ONCE):
        value, _, _ = _layer_at(index, tile, terms, known, radius, channels, whole)
        delta = value - mean
        mean += delta * (1.0 / (index + 1.0))
        squares += delta * (value - mean)
    return mean, squares


@kernel("batch height width")
def moments(
    term_maps,
    seen,
    corrected,
    lacking,
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
    group, groups, column = _group(channels, columns)
    known = column < channels
    maps, size = (term_maps, seen, corrected, lacking), (batch, height, width)
    mean = tl.zeros((tall * wide, columns), tl.float32)
    squares = tl.zeros((tall * wide, columns), tl.float32)
    count = tl.zeros((tall * wide, 1), tl.float32)
    for number in range(group, batch * tl.cdiv(height, tall) * tl.cdiv(width, wide), groups):
        tile, terms, whole = _frame1_tile(maps, size, number, column, radius, channels, tall, wide)
        if whole:
            joined, spread = _tile_moments(tile, terms, known, radius, channels, True)
        else:
            joined, spread = _tile_moments(tile, terms, known, radius, channels, False)
        more = tl.where(
            _inside(tile[2][1], tile[2][2], height, width), (2 * radius + 1) * (2 * radius + 1), 0
        )
        more = more.to(tl.float32)[:, None]
        share = more / tl.maximum(count + more, 1.0)
        delta = joined - mean  # two groups become one (Chan et al.)
        mean += delta * share
        squares += spread + delta * delta * (count * share)
        count += more
    put_moments(partial, count, mean, squares, group, groups, column, channels)


@triton.jit
def _normalize(
    target, norm, tile, terms, known, radius: tl.constexpr, channels: tl.constexpr, whole
):
    mean, factor, shift = norm
    displacements: tl.constexpr = (2 * radius + 1) * (2 * radius + 1)
    for index in tl.range(displacements, num_stages=1, loop_unroll_factor=_AT_ONCE):
        value, layer_step, mask = _layer_at(index, tile, terms, known, radius, channels, whole)
        value = relu((value - mean) * factor + shift).to(target.dtype.element_ty)
        tl.store(target + layer_step * channels, value, mask)


@triton.jit
def _tile_sums(source, stride, norm, tile, terms, known, radius: tl.constexpr, channels, whole):
    """Sums of the gradient and of gradient·centred of each place over all displacements."""
    plain, weighted = tl.zeros_like(terms[0]), tl.zeros_like(terms[0])
    mean, factor, shift = norm
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=_STAGES):
        value, layer_step, mask = _layer_at(index, tile, terms, known, radius, channels, whole)
        incoming = tl.load(source + layer_step * stride, mask, 0.0)
        centred, passed = before_relu(value, incoming, mean, factor, shift)
        plain += passed
        weighted += passed * centred
    return plain, weighted


@kernel("batch height width")
def through_norm(
    term_maps,
    seen,
    corrected,
    lacking,
    gradient,
    result,
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
    """A tile of the normalised layer after the ReLU: `result` (U·V·B, channels, H, W).

    With a `gradient`, instead its sums and those of gradient·centred: `result` (2, tiles, C).
    """
    number, tiles, column = _group(channels, columns)
    known = column < channels
    norm = parameters(statistics, weight, bias, column, channels)
    maps, size = (term_maps, seen, corrected, lacking), (batch, height, width)
    tile, terms, whole = _frame1_tile(maps, size, number, column, radius, channels, tall, wide)
    in_layer = tile[0][2][:, None]
    if gradient is None:
        target = result + in_layer * channels + column
        if whole:
            _normalize(target, norm, tile, terms, known, radius, channels, True)
        else:
            _normalize(target, norm, tile, terms, known, radius, channels, False)
    else:
        source = gradient + in_layer * stride + column
        tile_values = (source, stride, norm, tile, terms, known, radius, channels)
        if whole:
            plain, weighted = _tile_sums(*tile_values, True)
        else:
            plain, weighted = _tile_sums(*tile_values, False)
        put_sums(result, plain, weighted, number, tiles, column, channels)


@triton.jit
def _gradient(index, tile_values, radius: tl.constexpr, channels, normed, whole: tl.constexpr):
    """The gradient of the layer without the norm's factor, and the taps of the moving frame."""
    source, stride, tile, terms, norm, known = tile_values
    layer_step, map_step, bits, there = _step(index, tile, radius, whole)
    value = tl.load(source + layer_step * stride, there & known, 0.0).to(tl.float32)
    if normed:
        mean, factor, shift, plain, slope = norm
        before = _layer(layer_step, map_step, bits, there & known, tile, terms, channels, whole)
        centred, passed = before_relu(before, value, mean, factor, shift)
        value = passed - plain - centred * slope
    return value, bits[:, None]


@triton.jit
def _all_taps(zeros, tile_values, radius: tl.constexpr, channels, normed: tl.constexpr):
    """Nine sums, each of the displacements for which its tap is visible."""
    total = (zeros,) * 9
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=_STAGES):
        value, bits = _gradient(index, tile_values, radius, channels, normed, False)
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
def _one_sum(zeros, tile_values, radius: tl.constexpr, channels, normed: tl.constexpr):
    """All taps are visible for all displacements: nine equal sums."""
    once = zeros
    for index in tl.range((2 * radius + 1) * (2 * radius + 1), num_stages=_STAGES):
        once += _gradient(index, tile_values, radius, channels, normed, True)[0]
    return (once,) * 9


# Apart for whole tiles and others: nine sums need more registers, so that less is loaded at a time.
@kernel("batch height width")
def sum_displacements(
    term_maps,
    seen,
    corrected,
    lacking,
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
    whole: tl.constexpr,
):
    """One of the two sums, all nine taps, of a tile of pixels of the image and the ring around it.

    Without a norm, `term_maps`, `corrected` and all of the norm are None.
    """
    group, _, column = _group(channels, columns)
    second, known = group % 2, column < channels
    image, y, x = _pixels(group // 2, height, width, 1, tall, wide)
    item = second * batch + image
    if _is_whole(lacking, item, y, x, height, width) == whole:
        tile = _new_tile(seen, second, image, y, x, batch, height, width, radius)
        source = gradient + tile[0][2][:, None] * stride + column
        if term_maps is None:
            factor = 1.0
            source = (source, stride, tile, (), (), known)
        else:
            mean, factor, shift = parameters(statistics, weight, bias, column, channels)
            rows = (2 * radius + 1) * (2 * radius + 1) * batch * height * width
            plain, slope = averages(norm_sums, statistics, column, channels, rows)
            norm = (mean, factor, shift, plain, slope)
            terms = _new_terms(term_maps, corrected, tile, column, channels)
            source = (source, stride, tile, terms, norm, known)
        zeros = tl.zeros((tall * wide, columns), tl.float32)
        if whole:
            total = _one_sum(zeros, source, radius, channels, term_maps is not None)
        else:
            total = _all_taps(zeros, source, radius, channels, term_maps is not None)
        for tap in tl.static_range(9):
            row, line = y + tap // 3 - 1, x + tap % 3 - 1
            target = ((item * height + row).to(tl.int64) * width + line) * 9 + tap
            target = sums + target[:, None] * channels + column
            mask = _inside(row, line, height, width)[:, None] & known
            tl.store(target, (total[tap] * factor).to(sums.dtype.element_ty), mask)
