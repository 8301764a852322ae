"""Tiles of the matching net's first layer, computed from its two factors wherever it is needed.

A program takes some channels of a tile of pixels and goes through all displacements: the factor
of one frame stays in registers, that of the other moves, and comes out of the cache. A tile is
calm where both see all nine taps for every displacement; elsewhere `layer` also looks at what is
visible and, for few places, at what `correct` has written.

`parts` (2B, channels, H+2r, W+2r) and `seen` (2B, H+2r, W+2r) hold frame 2 first, then frame 1;
so does `restless` (2B, H, W), which is zero where a pixel of the other frame is calm.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl

ALL = tl.constexpr(511)  # nine taps
STAGES = tl.constexpr(5)  # displacements that are loaded at a time


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
