"""The rays of `casting` in one pass, a tile of pixels at a time.

A tile asks only bodies whose bounds it touches. All numbers of a body are in the rows that `world`
documents: POSE at one time, SKIN at all times, SCENE for the whole frame.
"""

import triton
import triton.language as tl

from ..kernels import outline_at
from . import casting, world
from .things import FORMS

_BOX, _ELLIPSOID, _CYLINDER, _CONE, _CUTOUT, _ROOM, _GROUND, _SKY = map(tl.constexpr, FORMS)
_POSE, _SKIN, _SCENE = map(tl.constexpr, (world.POSE, world.SKIN, world.SCENE))
_NEAR, _FAR, _INFINITE = map(tl.constexpr, (world.NEAR, casting.FAR, casting.INFINITE))
_TINY, _ROUNDS, _HIDDEN = map(tl.constexpr, (casting.TINY, casting.ROUNDS, casting.HIDDEN))
_NEVER = tl.constexpr(1e30)


@triton.jit
def _nonzero(value):
    return tl.where(tl.abs(value) < _TINY, _TINY, value)


@triton.jit
def turned(matrix, x, y, z):
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
def on_paper(skin, bend, x, y):
    """Points of the plane of a cut-out -> places on the paper that bends in it."""
    wave = bend * tl.sin(tl.load(skin + 14) * x + tl.load(skin + 15) * y + tl.load(skin + 16))
    return x + tl.load(skin + 17) * wave, y + tl.load(skin + 18) * wave


@triton.jit
def _hit_cutout(skin, bend, shapes, side, x, y, z, to_x, to_y, to_z, mask):
    found = -z / _nonzero(to_z)
    at_x, at_y = on_paper(skin, bend, x + found * to_x, y + found * to_y)
    shape = shapes + tl.load(skin + 13).to(tl.int32) * side * side
    return tl.where(outline_at(shape, at_x, at_y, side, mask) > 0.0, found, _NEVER)


@triton.jit
def hit_body(pose, skin, shapes, side, x, y, z, to_x, to_y, to_z, mask):
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
def touches(bounds, tile):
    """Whether the four numbers at `bounds` overlap those of a tile."""
    left, top, right, bottom = tile
    return (
        (tl.load(bounds) <= right)
        & (tl.load(bounds + 1) <= bottom)
        & (tl.load(bounds + 2) >= left)
        & (tl.load(bounds + 3) >= top)
    )


@triton.jit
def nearest_body(bodies, along_x, along_y, tile, mask):
    """The bodies, of those that `bodies_of` returns, that rays hit first, and their distances."""
    poses, skins, count, shapes, side = bodies
    distance = along_x * 0.0 + _INFINITE
    body = (along_x * 0.0).to(tl.int32)
    number = 1
    while number < count:
        pose, skin = poses + number * _POSE, skins + number * _SKIN
        if touches(pose + 25, tile):
            to_x, to_y, to_z = turned(pose, along_x, along_y, 1.0)
            x = tl.load(pose + 9) + to_x * 0.0
            y = tl.load(pose + 10) + to_x * 0.0
            z = tl.load(pose + 11) + to_x * 0.0
            found = hit_body(pose, skin, shapes, side, x, y, z, to_x, to_y, to_z, mask)
            nearer = found < distance
            distance = tl.where(nearer, found, distance)
            body = tl.where(nearer, number, body)
        number += 1
    return body, distance


@triton.jit
def own_place(pose, body, distance, along_x, along_y):
    """What is seen, in the coordinates of its body."""
    is_sky = body == 0
    length = tl.where(is_sky, 1.0, distance)
    to_x, to_y, to_z = turned(pose, along_x, along_y, 1.0)
    x = tl.where(is_sky, 0.0, tl.load(pose + 9)) + length * to_x
    y = tl.where(is_sky, 0.0, tl.load(pose + 10)) + length * to_y
    z = tl.where(is_sky, 0.0, tl.load(pose + 11)) + length * to_z
    return x, y, z


@triton.jit
def face_axis(form, flat, x, y, z):
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
        paper_x, paper_y = on_paper(skin, tl.load(before + 24), x, y)
        new_x, new_y = paper_x, paper_y
        bend = tl.load(after + 24)
        for _ in range(_ROUNDS):
            there_x, there_y = on_paper(skin, bend, new_x, new_y)
            new_x, new_y = paper_x + new_x - there_x, paper_y + new_y - there_y
        x, y = tl.where(form == _CUTOUT, new_x, x), tl.where(form == _CUTOUT, new_y, y)
    to_x, to_y, to_z = turned(after + 12, x, y, z)
    return to_x + tl.load(after + 21), to_y + tl.load(after + 22), to_z + tl.load(after + 23)


@triton.jit
def bodies_of(frame, world, poses, skins, counts, shapes, sizes):
    """Poses, skins and count of the bodies of a frame of a world, outlines, and their side."""
    num_bodies = tl.load(sizes + 1)
    own_poses, own_skins = poses + frame * num_bodies * _POSE, skins + world * num_bodies * _SKIN
    return own_poses, own_skins, tl.load(counts + world), shapes, tl.load(sizes + 4)


@triton.jit
def start_tile(sizes, scenes, tile_width: tl.constexpr, tile_height: tl.constexpr):
    """Of this program: the size of its frame, its tile, the pixels in it, and the camera."""
    height, width = tl.load(sizes + 2), tl.load(sizes + 3)
    across = (width + tile_width - 1) // tile_width
    left = (tl.program_id(0) % across) * tile_width
    top = (tl.program_id(0) // across) * tile_height
    inside = tl.arange(0, tile_width * tile_height)
    column, row = left + inside % tile_width, top + inside // tile_width
    mask = (column < width) & (row < height)
    focal = tl.load(scenes + tl.program_id(1) * _SCENE + 12)
    middle_x, middle_y = (width - 1.0) * 0.5, (height - 1.0) * 0.5
    tile = (left, top, left + tile_width - 1, top + tile_height - 1)
    # the index of the first pixel of the frame, and indices in it
    first, pixel = tl.program_id(1).to(tl.int64) * height * width, row * width + column
    return height, width, tile, column, row, mask, first, pixel, focal, middle_x, middle_y


@triton.jit
def trace_pairs(
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
    height, width, tile, column, row, mask, first, pixel, focal, middle_x, middle_y = start_tile(
        sizes, scenes, tile_width, tile_height
    )
    frame, batch = tl.program_id(1), tl.load(sizes)
    bodies = bodies_of(frame, frame % batch, poses, skins, counts, shapes, sizes)
    along_x, along_y = (column - middle_x) / focal, (row - middle_y) / focal
    body, far = nearest_body(bodies, along_x, along_y, tile, mask)
    before, skin = bodies[0] + body * _POSE, bodies[1] + body * _SKIN
    x, y, z = own_place(before, body, far, along_x, along_y)
    face = face_axis(tl.load(skin).to(tl.int32), tl.load(skin + 19), x, y, z)
    is_first = frame < batch
    other = tl.where(is_first, frame + batch, frame - batch)
    after = poses + other * tl.load(sizes + 1) * _POSE + body * _POSE
    to_x, to_y, to_z = _moved(skin, before, after, x, y, z)
    other_focal = tl.load(scenes + other * _SCENE + 12)
    depth = tl.maximum(to_z, _NEAR)
    ahead = to_z > _NEAR
    sign = tl.where(is_first, 1.0, -1.0)
    flow_x = tl.where(ahead, to_x / depth * other_focal + middle_x, 1e5) - column
    flow_y = tl.where(ahead, to_y / depth * other_focal + middle_y, 1e5) - row
    size = height * width
    tl.store(surface + first + pixel, (body * 4 + face).to(tl.int16), mask)
    tl.store(distance + first + pixel, far, mask)
    tl.store(layer + first + pixel, tl.load(skin + 1).to(tl.uint8), mask)
    tl.store(flow + 2 * first + pixel, sign * flow_x, mask)
    tl.store(flow + 2 * first + size + pixel, sign * flow_y, mask)


@triton.jit
def find_occluded(
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
    height, width, _, column, row, mask, first, pixel, focal, middle_x, middle_y = start_tile(
        sizes, scenes, tile_width, tile_height
    )
    world, other = tl.program_id(1), tl.program_id(1) + tl.load(sizes)
    bodies = bodies_of(world, world, poses, skins, counts, shapes, sizes)
    moved_bodies = bodies_of(other, world, poses, skins, counts, shapes, sizes)
    body = tl.load(surface + first + pixel, mask, 0).to(tl.int32) // 4
    far = tl.load(distance + first + pixel, mask, 1.0)
    other_focal = tl.load(scenes + other * _SCENE + 12)
    before, skin = bodies[0] + body * _POSE, bodies[1] + body * _SKIN
    x, y, z = own_place(before, body, far, (column - middle_x) / focal, (row - middle_y) / focal)
    to_x, to_y, to_z = _moved(skin, before, moved_bodies[0] + body * _POSE, x, y, z)
    depth = tl.maximum(to_z, _NEAR)
    along_x, along_y = to_x / depth, to_y / depth
    at_x, at_y = along_x * other_focal + middle_x, along_y * other_focal + middle_y
    gone = (to_z <= _NEAR) | (at_x < -0.5) | (at_x > width - 0.5)
    gone = gone | (at_y < -0.5) | (at_y > height - 0.5)
    seen = mask & (gone == 0)
    left, top = tl.min(tl.where(seen, at_x, 1e9), 0), tl.min(tl.where(seen, at_y, 1e9), 0)
    right, bottom = tl.max(tl.where(seen, at_x, -1e9), 0), tl.max(tl.where(seen, at_y, -1e9), 0)
    limit = tl.where(body == 0, _INFINITE, depth)
    limit = tl.minimum(limit * (1.0 - _HIDDEN), limit - 0.02)
    reached = (left - 1, top - 1, right + 1, bottom + 1)
    _, nearest = nearest_body(moved_bodies, along_x, along_y, reached, seen)
    gone = gone | (nearest < limit)
    tl.store(result + first + pixel, gone.to(tl.int8), mask)
