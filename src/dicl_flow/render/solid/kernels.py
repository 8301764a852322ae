"""The rays of `casting` and the colours of `shading`, one pass each, a tile of pixels at a time.

A tile asks only bodies whose bounds it touches. All numbers of a body are in the rows that `world`
documents: POSE at one time, SKIN at all times, SCENE for the whole frame.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.bilinear import between, cell_of
from . import casting, shading, things, world
from .shading import MipAtlas
from .world import Layout

_TILE_HEIGHT, _TILE_WIDTH, _WARPS = 8, 16, 4
_MOST_LEVELS = 8
_BOX, _ELLIPSOID = tl.constexpr(things.BOX), tl.constexpr(things.ELLIPSOID)
_CYLINDER, _CONE = tl.constexpr(things.CYLINDER), tl.constexpr(things.CONE)
_CUTOUT, _ROOM = tl.constexpr(things.CUTOUT), tl.constexpr(things.ROOM)
_GROUND, _SKY = tl.constexpr(things.GROUND), tl.constexpr(things.SKY)
_POSE, _SKIN = tl.constexpr(world.POSE), tl.constexpr(world.SKIN)
_SCENE = tl.constexpr(world.SCENE)
_NEAR, _FAR = tl.constexpr(world.NEAR), tl.constexpr(casting.FAR)
_INFINITE = tl.constexpr(casting.INFINITE)
_NEVER = tl.constexpr(1e30)
_TINY = tl.constexpr(casting._TINY)
_ROUNDS, _HIDDEN = tl.constexpr(casting._ROUNDS), tl.constexpr(casting._HIDDEN)
_MAX_BLUR, _SHARPNESS = tl.constexpr(shading.MAX_BLUR), tl.constexpr(shading.SHARPNESS)
_PANE_SCALE, _SOFT = tl.constexpr(shading.PANE_SCALE), tl.constexpr(shading.SOFT)


# ---- rays ----------------------------------------------------------------------------------------


@triton.jit
def _nonzero(value):
    return tl.where(tl.abs(value) < _TINY, _TINY, value)


@triton.jit
def _turn(matrix, x, y, z):
    """The nine numbers at `matrix` times vectors."""
    to_x = tl.load(matrix) * x + tl.load(matrix + 1) * y + tl.load(matrix + 2) * z
    to_y = tl.load(matrix + 3) * x + tl.load(matrix + 4) * y + tl.load(matrix + 5) * z
    to_z = tl.load(matrix + 6) * x + tl.load(matrix + 7) * y + tl.load(matrix + 8) * z
    return to_x, to_y, to_z


@triton.jit
def _hit_box(inside, x, y, z, to_x, to_y, to_z):
    by_x, by_y, by_z = 1.0 / _nonzero(to_x), 1.0 / _nonzero(to_y), 1.0 / _nonzero(to_z)
    low_x, high_x = (-1.0 - x) * by_x, (1.0 - x) * by_x
    low_y, high_y = (-1.0 - y) * by_y, (1.0 - y) * by_y
    low_z, high_z = (-1.0 - z) * by_z, (1.0 - z) * by_z
    enter = tl.maximum(tl.minimum(low_x, high_x), tl.minimum(low_y, high_y))
    enter = tl.maximum(enter, tl.minimum(low_z, high_z))
    leave = tl.minimum(tl.maximum(low_x, high_x), tl.maximum(low_y, high_y))
    leave = tl.minimum(leave, tl.maximum(low_z, high_z))
    return tl.where(enter < leave, tl.where(inside, leave, enter), _NEVER)


@triton.jit
def _hit_lid(end, x, y, z, to_x, to_y, to_z):
    lid = (end - y) / _nonzero(to_y)
    at_x, at_z = x + lid * to_x, z + lid * to_z
    return tl.where((at_x * at_x + at_z * at_z <= 1.0) & (lid > _NEAR), lid, _NEVER)


@triton.jit
def _hit_round(form, x, y, z, to_x, to_y, to_z):
    a = to_x * to_x + to_z * to_z
    b = x * to_x + z * to_z
    c = x * x + z * z
    # the share of y in the equation: a sphere adds it, a cone subtracts a quarter
    share = tl.where(form == _ELLIPSOID, 1.0, tl.where(form == _CONE, -0.25, 0.0))
    lift = tl.where(form == _CONE, 1.0, 0.0)
    a += share * to_y * to_y
    b += share * (y + lift) * to_y
    c += share * (y + lift) * (y + lift) - tl.where(form == _CONE, 0.0, 1.0)
    inner = b * b - a * c
    root = tl.sqrt(tl.maximum(inner, 0.0))
    safe = _nonzero(a)
    one, other = (-b - root) / safe, (-b + root) / safe
    found = tl.where(inner > 0.0, tl.minimum(one, other), _NEVER)
    if form != _ELLIPSOID:
        found = tl.where(tl.abs(y + found * to_y) <= 1.0, found, _NEVER)
        if form == _CONE:
            second = tl.where(inner > 0.0, tl.maximum(one, other), _NEVER)
            second = tl.where(tl.abs(y + second * to_y) <= 1.0, second, _NEVER)
            found = tl.minimum(tl.where(found > _NEAR, found, _NEVER), second)
        else:
            found = tl.minimum(found, _hit_lid(-1.0, x, y, z, to_x, to_y, to_z))
        found = tl.minimum(found, _hit_lid(1.0, x, y, z, to_x, to_y, to_z))
    return found


@triton.jit
def _paper(skin, bend, x, y):
    wave = bend * tl.sin(tl.load(skin + 14) * x + tl.load(skin + 15) * y + tl.load(skin + 16))
    return x + tl.load(skin + 17) * wave, y + tl.load(skin + 18) * wave


@triton.jit
def _hit_cutout(skin, bend, shapes, side, x, y, z, to_x, to_y, to_z, mask):
    found = -z / _nonzero(to_z)
    at_x, at_y = _paper(skin, bend, x + found * to_x, y + found * to_y)
    half = (side - 1.0) * 0.5
    column, in_x = cell_of((tl.minimum(tl.maximum(at_x, -1.0), 1.0) + 1.0) * half, side)
    row, in_y = cell_of((tl.minimum(tl.maximum(at_y, -1.0), 1.0) + 1.0) * half, side)
    shape = shapes + tl.load(skin + 13).to(tl.int32) * side * side
    edge = between(shape, row * side + column, 1, side, in_x, in_y, mask)
    return tl.where(edge > 0.0, found, _NEVER)


@triton.jit
def _hit(pose, skin, shapes, side, x, y, z, to_x, to_y, to_z, mask):
    """Distances of the nearest hits beyond the nearest distance, from points in its own axes."""
    form = tl.load(skin).to(tl.int32)
    found = x + to_x  # of the shape of both
    if (form == _BOX) | (form == _ROOM):
        found = _hit_box(form == _ROOM, x, y, z, to_x, to_y, to_z)
    elif form == _CUTOUT:
        bend = tl.load(pose + 24)
        found = _hit_cutout(skin, bend, shapes, side, x, y, z, to_x, to_y, to_z, mask)
    elif form == _GROUND:
        found = -y / _nonzero(to_y)
        found = tl.where(found < _FAR, found, _NEVER)
    else:
        found = _hit_round(form, x, y, z, to_x, to_y, to_z)
    return tl.where(found > _NEAR, found, _NEVER)


@triton.jit
def _touches(bounds, left, top, right, bottom):
    return (
        (tl.load(bounds) <= right)
        & (tl.load(bounds + 1) <= bottom)
        & (tl.load(bounds + 2) >= left)
        & (tl.load(bounds + 3) >= top)
    )


@triton.jit
def _nearest(poses, skins, count, shapes, side, along_x, along_y, left, top, right, bottom, mask):
    """The bodies that rays hit first, and their distances."""
    distance = along_x * 0.0 + _INFINITE
    body = (along_x * 0.0).to(tl.int32)
    number = 1
    while number < count:
        pose, skin = poses + number * _POSE, skins + number * _SKIN
        if _touches(pose + 25, left, top, right, bottom):
            to_x, to_y, to_z = _turn(pose, along_x, along_y, 1.0)
            x = tl.load(pose + 9) + to_x * 0.0
            y = tl.load(pose + 10) + to_x * 0.0
            z = tl.load(pose + 11) + to_x * 0.0
            found = _hit(pose, skin, shapes, side, x, y, z, to_x, to_y, to_z, mask)
            nearer = found < distance
            distance = tl.where(nearer, found, distance)
            body = tl.where(nearer, number, body)
        number += 1
    return body, distance


@triton.jit
def _own_place(pose, body, distance, along_x, along_y):
    """What is seen, in the coordinates of its body."""
    is_sky = body == 0
    length = tl.where(is_sky, 1.0, distance)
    to_x, to_y, to_z = _turn(pose, along_x, along_y, 1.0)
    x = tl.where(is_sky, 0.0, tl.load(pose + 9)) + length * to_x
    y = tl.where(is_sky, 0.0, tl.load(pose + 10)) + length * to_y
    z = tl.where(is_sky, 0.0, tl.load(pose + 11)) + length * to_z
    return x, y, z


@triton.jit
def _face(form, flat, x, y, z):
    """The axis, 0 to 2, that a surface looks along."""
    far_x, far_y, far_z = tl.abs(x), tl.abs(y), tl.abs(z)
    axis = tl.where((far_x >= far_y) & (far_x >= far_z), 0, tl.where(far_y >= far_z, 1, 2))
    upright = tl.where(far_x >= far_z, 0, 2)
    radius = tl.sqrt(x * x + z * z)
    on_lid = (far_y > 0.9999) & (radius < 0.9999)
    on_base = (1.0 + y) * 0.5 - radius > 1e-3
    axis = tl.where(form == _CYLINDER, tl.where(on_lid, 1, upright), axis)
    axis = tl.where(form == _CONE, tl.where(on_base, 1, upright), axis)
    axis = tl.where(form == _GROUND, 1, tl.where(form == _CUTOUT, 2, axis))
    return tl.where(flat > 0.0, 1, axis)


@triton.jit
def _moved(skin, before, after, x, y, z):
    """Where points are for the camera at another time."""
    form = tl.load(skin).to(tl.int32)
    if tl.max((form == _CUTOUT).to(tl.int32), 0) > 0:
        paper_x, paper_y = _paper(skin, tl.load(before + 24), x, y)
        new_x, new_y = paper_x, paper_y
        bend = tl.load(after + 24)
        for _ in range(_ROUNDS):
            there_x, there_y = _paper(skin, bend, new_x, new_y)
            new_x, new_y = paper_x + new_x - there_x, paper_y + new_y - there_y
        x, y = tl.where(form == _CUTOUT, new_x, x), tl.where(form == _CUTOUT, new_y, y)
    to_x, to_y, to_z = _turn(after + 12, x, y, z)
    return to_x + tl.load(after + 21), to_y + tl.load(after + 22), to_z + tl.load(after + 23)


@triton.jit
def _tile(width, tile_width: tl.constexpr, tile_height: tl.constexpr):
    """The corner of the tile of this program, and the positions of its pixels."""
    across = (width + tile_width - 1) // tile_width
    left = (tl.program_id(0) % across) * tile_width
    top = (tl.program_id(0) // across) * tile_height
    inside = tl.arange(0, tile_width * tile_height)
    return left, top, left + inside % tile_width, top + inside // tile_width


@triton.jit
def _trace(
    poses,
    skins,
    scenes,
    counts,
    shapes,
    sizes,
    surface,
    distance,
    flow,
    layer,
    tile_width: tl.constexpr,
    tile_height: tl.constexpr,
):
    """What a tile sees, and where it goes: from the first time to the second, or came from."""
    batch, bodies = tl.load(sizes), tl.load(sizes + 1)
    height, width, side = tl.load(sizes + 2), tl.load(sizes + 3), tl.load(sizes + 4)
    frame = tl.program_id(1)
    scene = frame % batch
    left, top, column, row = _tile(width, tile_width, tile_height)
    mask = (column < width) & (row < height)
    focal = tl.load(scenes + frame * _SCENE + 12)
    middle_x, middle_y = (width - 1.0) * 0.5, (height - 1.0) * 0.5
    along_x, along_y = (column - middle_x) / focal, (row - middle_y) / focal
    own_poses, own_skins = poses + frame * bodies * _POSE, skins + scene * bodies * _SKIN
    body, far = _nearest(
        own_poses, own_skins, tl.load(counts + scene), shapes, side, along_x, along_y,
        left, top, left + tile_width - 1, top + tile_height - 1, mask,
    )  # fmt: skip
    before, skin = own_poses + body * _POSE, own_skins + body * _SKIN
    x, y, z = _own_place(before, body, far, along_x, along_y)
    face = _face(tl.load(skin).to(tl.int32), tl.load(skin + 19), x, y, z)
    is_first = frame < batch
    other = tl.where(is_first, frame + batch, frame - batch)
    after = poses + other * bodies * _POSE + body * _POSE
    to_x, to_y, to_z = _moved(skin, before, after, x, y, z)
    other_focal = tl.load(scenes + other * _SCENE + 12)
    depth = tl.maximum(to_z, _NEAR)
    ahead = to_z > _NEAR
    sign = tl.where(is_first, 1.0, -1.0)
    flow_x = tl.where(ahead, to_x / depth * other_focal + middle_x, 1e5) - column
    flow_y = tl.where(ahead, to_y / depth * other_focal + middle_y, 1e5) - row
    size = height * width
    pixel = row * width + column
    first = frame.to(tl.int64) * size
    tl.store(surface + first + pixel, (body * 4 + face).to(tl.int16), mask)
    tl.store(distance + first + pixel, far, mask)
    tl.store(layer + first + pixel, tl.load(skin + 1).to(tl.uint8), mask)
    tl.store(flow + 2 * first + pixel, sign * flow_x, mask)
    tl.store(flow + 2 * first + size + pixel, sign * flow_y, mask)


@triton.jit
def _occluded(
    poses,
    skins,
    scenes,
    counts,
    shapes,
    sizes,
    surface,
    distance,
    result,
    tile_width: tl.constexpr,
    tile_height: tl.constexpr,
):
    """Whether what a tile sees at the first time is hidden or outside at the second."""
    batch, bodies = tl.load(sizes), tl.load(sizes + 1)
    height, width, side = tl.load(sizes + 2), tl.load(sizes + 3), tl.load(sizes + 4)
    scene = tl.program_id(1)
    _, _, column, row = _tile(width, tile_width, tile_height)
    mask = (column < width) & (row < height)
    pixel = row * width + column
    first = scene.to(tl.int64) * height * width
    body = tl.load(surface + first + pixel, mask, 0).to(tl.int32) // 4
    far = tl.load(distance + first + pixel, mask, 1.0)
    focal, other_focal = (
        tl.load(scenes + scene * _SCENE + 12),
        tl.load(scenes + (scene + batch) * _SCENE + 12),
    )
    middle_x, middle_y = (width - 1.0) * 0.5, (height - 1.0) * 0.5
    own_skins = skins + scene * bodies * _SKIN
    before = poses + (scene * bodies + body) * _POSE
    others = poses + (scene + batch) * bodies * _POSE
    skin = own_skins + body * _SKIN
    x, y, z = _own_place(before, body, far, (column - middle_x) / focal, (row - middle_y) / focal)
    to_x, to_y, to_z = _moved(skin, before, others + body * _POSE, x, y, z)
    depth = tl.maximum(to_z, _NEAR)
    along_x, along_y = to_x / depth, to_y / depth
    at_x, at_y = along_x * other_focal + middle_x, along_y * other_focal + middle_y
    gone = (to_z <= _NEAR) | (at_x < -0.5) | (at_x > width - 0.5)
    gone = gone | (at_y < -0.5) | (at_y > height - 0.5)
    seen = mask & (gone == 0)
    left, right = (
        tl.min(tl.where(seen, at_x, 1e9), 0) - 1,
        tl.max(tl.where(seen, at_x, -1e9), 0) + 1,
    )
    top, bottom = (
        tl.min(tl.where(seen, at_y, 1e9), 0) - 1,
        tl.max(tl.where(seen, at_y, -1e9), 0) + 1,
    )
    limit = tl.where(body == 0, _INFINITE, depth)
    limit = tl.minimum(limit * (1.0 - _HIDDEN), limit - 0.02)
    _, nearest = _nearest(
        others, own_skins, tl.load(counts + scene), shapes, side, along_x, along_y,
        left, top, right, bottom, seen,
    )  # fmt: skip
    gone = gone | (nearest < limit)
    tl.store(result + first + pixel, gone.to(tl.int8), mask)


# ---- colours -------------------------------------------------------------------------------------


@triton.jit
def _mirrored(x, side):
    """Positions -> inside [0, side - 1], mirrored at the borders, at most half a texel out."""
    away = tl.abs(x + 0.5)
    turns = tl.floor(away / side)
    rest = away - turns * side
    odd = turns - 2.0 * tl.floor(turns / 2.0)
    rest = tl.where(odd > 0.5, side - rest, rest)
    return tl.minimum(tl.maximum(rest - 0.5, 0.0), side - 1.0)


@triton.jit
def _level(texels, sizes, number, u, v, level, mask):
    """Colours of one mip level; the four texels of each."""
    high, wide = tl.load(sizes + 5) >> level, tl.load(sizes + 6) >> level
    shrink = tl.exp2(-level.to(tl.float32))
    at_x = _mirrored(u * shrink - 0.5, wide.to(tl.float32))
    at_y = _mirrored(v * shrink - 0.5, high.to(tl.float32))
    left, in_x = cell_of(at_x, wide.to(tl.float32))
    top, in_y = cell_of(at_y, high.to(tl.float32))
    first = tl.load(sizes + 9 + level)
    corner = texels + first + ((number.to(tl.int64) * high + top) * wide + left) * 3
    down = wide * 3
    red = _mixed(corner, down, in_x, in_y, mask)
    green = _mixed(corner + 1, down, in_x, in_y, mask)
    blue = _mixed(corner + 2, down, in_x, in_y, mask)
    return red, green, blue


@triton.jit
def _mixed(corner, down, x, y, mask):
    top_left = tl.load(corner, mask, 0).to(tl.float32)
    top = top_left + x * (tl.load(corner + 3, mask, 0).to(tl.float32) - top_left)
    corner += down
    bottom_left = tl.load(corner, mask, 0).to(tl.float32)
    bottom = bottom_left + x * (tl.load(corner + 3, mask, 0).to(tl.float32) - bottom_left)
    return (top + y * (bottom - top)) / 255.0


@triton.jit
def _sample(texels, sizes, number, u, v, level, mask):
    """Colours at texels (u, v) of the finest level, between two levels."""
    levels = tl.load(sizes + 8)
    level = tl.minimum(tl.maximum(level, 0.0), levels - 1.001)
    coarse = tl.floor(level)
    share = level - coarse
    fine = coarse.to(tl.int32)
    red, green, blue = _level(texels, sizes, number, u, v, fine, mask)
    red2, green2, blue2 = _level(texels, sizes, number, u, v, fine + 1, mask)
    return (
        red + share * (red2 - red),
        green + share * (green2 - green),
        blue + share * (blue2 - blue),
    )


@triton.jit
def _normal(pose, form, face, x, y, z, view_x, view_y, view_z):
    """Unit normals in the axes of the camera, towards it, and how much they face it."""
    side = ((form == _CYLINDER) | (form == _CONE)) & (face != 1)
    bowed = (form == _ELLIPSOID) | (form == _SKY)
    lean = tl.where(form == _CONE, -(1.0 + y) * 0.5, 0.0)
    own_x = tl.where(bowed, x, tl.where(side, 2.0 * x, tl.where(face == 0, 1.0, 0.0)))
    own_y = tl.where(bowed, y, tl.where(side, lean, tl.where(face == 1, 1.0, 0.0)))
    own_z = tl.where(bowed, z, tl.where(side, 2.0 * z, tl.where(face == 2, 1.0, 0.0)))
    to_x = tl.load(pose) * own_x + tl.load(pose + 3) * own_y + tl.load(pose + 6) * own_z
    to_y = tl.load(pose + 1) * own_x + tl.load(pose + 4) * own_y + tl.load(pose + 7) * own_z
    to_z = tl.load(pose + 2) * own_x + tl.load(pose + 5) * own_y + tl.load(pose + 8) * own_z
    length = tl.maximum(tl.sqrt(to_x * to_x + to_y * to_y + to_z * to_z), 1e-12)
    to_x, to_y, to_z = to_x / length, to_y / length, to_z / length
    facing = to_x * view_x + to_y * view_y + to_z * view_z
    sign = tl.where(facing > 0.0, -1.0, 1.0)
    return sign * to_x, sign * to_y, sign * to_z, tl.abs(facing)


@triton.jit
def _shadowed(poses, skins, count, shapes, side, sun, x, y, z, lit, left, top, right, bottom):
    """Whether something is between points, given for the camera, and the sun."""
    hidden = lit & (lit == 0)
    sun_x, sun_y, sun_z = tl.load(sun), tl.load(sun + 1), tl.load(sun + 2)
    number = 1
    while number < count:
        pose, skin = poses + number * _POSE, skins + number * _SKIN
        if _touches(pose + 29, left, top, right, bottom):
            from_x, from_y, from_z = _turn(
                pose, x - tl.load(pose + 21), y - tl.load(pose + 22), z - tl.load(pose + 23)
            )
            to_x, to_y, to_z = _turn(pose, sun_x, sun_y, sun_z)
            zero = from_x * 0.0
            found = _hit(
                pose, skin, shapes, side, from_x, from_y, from_z,
                zero + to_x, zero + to_y, zero + to_z, lit,
            )  # fmt: skip
            hidden = hidden | (found < _FAR)
        number += 1
    return hidden


@triton.jit
def _surroundings(scene, texels, sizes, x, y, z, mask):
    """Colours reflected from directions of the camera."""
    world_x, world_y, world_z = _turn(scene, x, y, z)
    far_x, far_y, far_z = tl.abs(world_x), tl.abs(world_y), tl.abs(world_z)
    largest = tl.maximum(tl.maximum(tl.maximum(far_x, far_y), far_z), 1e-6)
    u = tl.where(far_x >= largest, world_z, world_x) / largest
    v = tl.where(far_y >= largest, world_z, world_y) / largest
    number = tl.load(scene + 20) + u * 0.0
    high, wide = tl.load(sizes + 5), tl.load(sizes + 6)
    level = u * 0.0 + _SOFT
    return _sample(
        texels, sizes, number, (1.0 + u) * wide * 0.5, (1.0 + v) * high * 0.5, level, mask
    )


@triton.jit
def _color(
    poses, skins, scene, count, texels, shapes, sizes, body, distance, along_x, along_y,
    left, top, right, bottom, mask,
):  # fmt: skip
    """Colours, without fog, of bodies at distances along rays."""
    pose, skin = poses + body * _POSE, skins + body * _SKIN
    form = tl.load(skin).to(tl.int32)
    is_sky = body == 0
    length = tl.where(is_sky, 1.0, distance)
    x, y, z = _own_place(pose, body, distance, along_x, along_y)
    face = _face(form, tl.load(skin + 19), x, y, z)
    norm = tl.sqrt(along_x * along_x + along_y * along_y + 1.0)
    view_x, view_y, view_z = along_x / norm, along_y / norm, 1.0 / norm
    to_x, to_y, to_z, facing = _normal(pose, form, face, x, y, z, view_x, view_y, view_z)

    # light
    ambient, shines = tl.load(scene + 13), tl.load(scene + 14)
    sun_x, sun_y, sun_z = tl.load(scene + 9), tl.load(scene + 10), tl.load(scene + 11)
    toward = to_x * sun_x + to_y * sun_y + to_z * sun_z
    turned_x, turned_y, turned_z = (  # the normal points at the camera
        view_x + 2.0 * facing * to_x,
        view_y + 2.0 * facing * to_y,
        view_z + 2.0 * facing * to_z,
    )
    light = ambient + (1.0 - ambient) * (0.5 + 0.5 * toward)
    shine = light * 0.0
    if shines > 0.0:
        lit = mask & (toward > 0.0) & (is_sky == 0)
        lift = 0.01 + 0.002 * distance
        hidden = _shadowed(
            poses, skins, count, shapes, tl.load(sizes + 4), scene + 9,
            distance * along_x + lift * to_x, distance * along_y + lift * to_y,
            distance + lift * to_z, lit, left, top, right, bottom,
        )  # fmt: skip
        lit = lit & (hidden == 0)
        light = ambient + (1.0 - ambient) * tl.where(lit, tl.maximum(toward, 0.0), 0.0)
        bounced = turned_x * sun_x + turned_y * sun_y + turned_z * sun_z
        shine = tl.where(
            lit & (bounced > 0.0), tl.exp2(tl.log2(tl.maximum(bounced, 1e-12)) * _SHARPNESS), 0.0
        )
    light = tl.where(is_sky, 1.0, light)

    # texture
    paper_x, paper_y = _paper(skin, tl.load(pose + 24), x, y)
    x, y = tl.where(form == _CUTOUT, paper_x, x), tl.where(form == _CUTOUT, paper_y, y)
    largest = tl.maximum(tl.maximum(tl.maximum(tl.abs(x), tl.abs(y)), tl.abs(z)), 1e-6)
    largest = tl.where(form == _SKY, largest, 1.0)
    x, y, z = x / largest, y / largest, z / largest
    along = tl.where(face == 0, x, tl.where(face == 1, y, z))
    wall = tl.where(form == _ROOM, face + tl.where(along > 0.0, 3, 0), 0)
    number = (tl.load(skin + 2).to(tl.int32) + wall) % tl.load(sizes + 7).to(tl.int32)
    x, y, z = x * tl.load(skin + 5), y * tl.load(skin + 6), z * tl.load(skin + 7)
    high, wide = tl.load(sizes + 5), tl.load(sizes + 6)
    u = tl.load(skin + 3) * wide + tl.where(face == 0, z, x)
    v = tl.load(skin + 4) * high + tl.where(face == 1, z, y)
    footprint = tl.load(skin + 20) * length / tl.load(scene + 12)
    slant = tl.where(form == _SKY, 1.0, tl.maximum(facing, _MAX_BLUR))
    level = tl.log2(tl.maximum(footprint / slant, 1e-6))
    red, green, blue = _sample(texels, sizes, number, u, v, level, mask)
    red, green, blue = (
        red * tl.load(skin + 8) * light,
        green * tl.load(skin + 9) * light,
        blue * tl.load(skin + 10) * light,
    )

    mirror = tl.where(is_sky, 0.0, tl.load(skin + 12))
    if tl.max(mirror, 0) > 0.0:
        shown = mask & (mirror > 0.0)
        red2, green2, blue2 = _surroundings(
            scene, texels, sizes, turned_x, turned_y, turned_z, shown
        )
        red += mirror * (red2 - red)
        green += mirror * (green2 - green)
        blue += mirror * (blue2 - blue)
    shine *= tl.load(skin + 11)
    return red + shine, green + shine, blue + shine


@triton.jit
def _shade(
    poses,
    skins,
    scenes,
    counts,
    shapes,
    sizes,
    surface,
    distance,
    fog,
    texels,
    color,
    haze,
    tile_width: tl.constexpr,
    tile_height: tl.constexpr,
):
    """The colours of a tile; pixels at an edge are looked at in four places."""
    batch, bodies = tl.load(sizes), tl.load(sizes + 1)
    height, width, side = tl.load(sizes + 2), tl.load(sizes + 3), tl.load(sizes + 4)
    frame = tl.program_id(1)
    world = frame % batch
    left, top, column, row = _tile(width, tile_width, tile_height)
    mask = (column < width) & (row < height)
    pixel = row * width + column
    size = height * width
    first = frame.to(tl.int64) * size
    scene = scenes + frame * _SCENE
    focal, count = tl.load(scene + 12), tl.load(counts + world)
    middle_x, middle_y = (width - 1.0) * 0.5, (height - 1.0) * 0.5
    own_poses, own_skins = poses + frame * bodies * _POSE, skins + world * bodies * _SKIN
    right, bottom = left + tile_width - 1, top + tile_height - 1

    seen = surface + first + pixel
    own = tl.load(seen, mask, 0)
    edge = own != tl.load(seen - 1, mask & (column > 0), own)
    edge = edge | (own != tl.load(seen + 1, mask & (column < width - 1), own))
    edge = edge | (own != tl.load(seen - width, mask & (row > 0), own))
    edge = edge | (own != tl.load(seen + width, mask & (row < height - 1), own))
    edge = edge & mask
    body = own.to(tl.int32) // 4
    far = tl.load(distance + first + pixel, mask, 1.0)

    red = far * 0.0
    green = far * 0.0
    blue = far * 0.0
    samples = tl.where(tl.max(edge.to(tl.int32), 0) > 0, 4, 1)
    sample = 0
    while sample < samples:
        to_x = tl.where(sample == 0, -0.125, tl.where(sample == 1, 0.375, 0.125))
        to_x = tl.where(sample == 3, -0.375, to_x)
        to_y = tl.where(sample == 0, -0.375, tl.where(sample == 1, -0.125, 0.375))
        to_y = tl.where(sample == 3, 0.125, to_y)
        along_x = (column + tl.where(edge, to_x, 0.0) - middle_x) / focal
        along_y = (row + tl.where(edge, to_y, 0.0) - middle_y) / focal
        hit, at = body, far
        if samples > 1:
            hit, at = _nearest(
                own_poses, own_skins, count, shapes, side, along_x, along_y,
                left, top, right, bottom, edge,
            )  # fmt: skip
            hit, at = tl.where(edge, hit, body), tl.where(edge, at, far)
        counts_here = mask & (edge | (column * 0 + sample == 0))
        more_red, more_green, more_blue = _color(
            own_poses, own_skins, scene, count, texels, shapes, sizes, hit, at, along_x, along_y,
            left, top, right, bottom, counts_here,
        )  # fmt: skip
        share = tl.where(edge, 0.25, 1.0)
        red += tl.where(counts_here, share * more_red, 0.0)
        green += tl.where(counts_here, share * more_green, 0.0)
        blue += tl.where(counts_here, share * more_blue, 0.0)
        sample += 1

    thick = 1.0 - tl.exp2(-far / tl.load(scene + 15) * 1.4426950408889634)
    tl.store(haze + first + pixel, thick, mask)
    thick *= tl.load(fog + world * 4)
    red += thick * (tl.load(fog + world * 4 + 1) - red)
    green += thick * (tl.load(fog + world * 4 + 2) - green)
    blue += thick * (tl.load(fog + world * 4 + 3) - blue)
    pane = tl.load(scene + 16)
    if pane > 0.0:  # a reflection that stays where it is
        u = tl.load(scene + 18) * tl.load(sizes + 6) + column * _PANE_SCALE
        v = tl.load(scene + 19) * tl.load(sizes + 5) + row * _PANE_SCALE
        number, level = u * 0.0 + tl.load(scene + 17), u * 0.0 + _SOFT
        red2, green2, blue2 = _sample(texels, sizes, number, u, v, level, mask)
        red += pane * (red2 - red)
        green += pane * (green2 - green)
        blue += pane * (blue2 - blue)
    target = color + 3 * first + pixel
    tl.store(target, red, mask)
    tl.store(target + size, green, mask)
    tl.store(target + 2 * size, blue, mask)


# ---- launching -----------------------------------------------------------------------------------


class PairCaster:
    """Sees pairs of frames: the two times of a layout."""

    def __init__(
        self, layout: Layout, textures: MipAtlas, shapes: Tensor, size: tuple[int, int]
    ) -> None:
        self.layout, self.textures, self.shapes, self.size = layout, textures, shapes, size
        device, frames = layout.pose.device, 2 * layout.batch
        firsts = [textures.first(level) for level in range(textures.num_levels)]
        numbers = [layout.batch, layout.pose.shape[2], *size, shapes.shape[-1], *textures.size]
        numbers += [textures.num_textures, textures.num_levels, *firsts]
        self.sizes = torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)
        self.surface = torch.empty(frames, *size, dtype=torch.int16, device=device)
        self.distance = torch.empty(frames, *size, device=device)
        self.flow = torch.empty(frames, 2, *size, device=device)
        self.layer = torch.empty(frames, *size, dtype=torch.uint8, device=device)
        self._launch(_trace, frames, self.surface, self.distance, self.flow, self.layer)

    def occluded(self) -> Tensor:
        """(B, H, W) bool."""
        result = torch.empty(
            self.layout.batch, *self.size, dtype=torch.int8, device=self.flow.device
        )
        self._launch(_occluded, self.layout.batch, self.surface, self.distance, result)
        return result > 0

    def shade(self, fog: Tensor) -> tuple[Tensor, Tensor]:
        """(N, 3, H, W) colours and (N, 1, H, W) depth in [0, 1]."""
        frames, device = 2 * self.layout.batch, self.flow.device
        color = torch.empty(frames, 3, *self.size, device=device)
        depth = torch.empty(frames, 1, *self.size, device=device)
        texels = self.textures.texels
        seen = (self.surface, self.distance, fog.contiguous(), texels, color, depth)
        self._launch(_shade, frames, *seen)
        return color, depth

    def _launch(self, kernel: "triton.JITFunction", frames: int, *arguments: Tensor) -> None:
        height, width = self.size
        tiles = triton.cdiv(height, _TILE_HEIGHT) * triton.cdiv(width, _TILE_WIDTH)
        layout = self.layout
        parts = (layout.pose, layout.skin, layout.scene, layout.count, self.shapes, self.sizes)
        with torch.cuda.device_of(self.distance):
            kernel[(tiles, frames)](
                *parts,
                *arguments,
                tile_width=_TILE_WIDTH,
                tile_height=_TILE_HEIGHT,
                num_warps=_WARPS,
            )
