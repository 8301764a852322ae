"""The colours of `shading` in one pass, a tile of pixels at a time; and what runs the kernels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops import Size
from ..kernels import between, cell_of, mirrored
from ..textures import MipAtlas
from . import casting, shading, world
from . import ray_kernels as rays
from .things import FORMS

_TILE_HEIGHT, _TILE_WIDTH, _WARPS = 8, 16, 4

_BOX, _ELLIPSOID, _CYLINDER, _CONE, _CUTOUT, _ROOM, _GROUND, _SKY = map(tl.constexpr, FORMS)
_POSE, _SKIN, _SCENE = map(tl.constexpr, (world.POSE, world.SKIN, world.SCENE))
_MAX_BLUR, _SHARPNESS = tl.constexpr(shading.MAX_BLUR), tl.constexpr(shading.SHARPNESS)
_PANE_SCALE, _SOFT = tl.constexpr(shading.PANE_SCALE), tl.constexpr(shading.SOFT)
_FAR = tl.constexpr(casting.FAR)


@triton.jit
def _level(texels, sizes, number, u, v, level, mask):
    """Colours of one mip level; the four texels of each."""
    high, wide = tl.load(sizes + 5) >> level, tl.load(sizes + 6) >> level
    shrink = tl.exp2(-level.to(tl.float32))
    at_x = mirrored(u * shrink - 0.5, wide.to(tl.float32))
    at_y = mirrored(v * shrink - 0.5, high.to(tl.float32))
    left, in_x = cell_of(at_x, wide.to(tl.float32))
    top, in_y = cell_of(at_y, high.to(tl.float32))
    first = tl.load(sizes + 9 + level)
    corner = texels + first + ((number.to(tl.int64) * high + top) * wide + left) * 3
    red = between(corner, 0, 3, wide * 3, in_x, in_y, mask) / 255.0
    green = between(corner, 1, 3, wide * 3, in_x, in_y, mask) / 255.0
    blue = between(corner, 2, 3, wide * 3, in_x, in_y, mask) / 255.0
    return red, green, blue


@triton.jit
def _mixed(color, other, share):
    """Red, green and blue, mixed with a share of others."""
    red, green, blue = color
    red2, green2, blue2 = other
    return (
        red + share * (red2 - red),
        green + share * (green2 - green),
        blue + share * (blue2 - blue),
    )


@triton.jit
def _sample(texels, sizes, number, u, v, level, mask):
    """Colours at texels (u, v) of the finest level, between two levels."""
    levels = tl.load(sizes + 8)
    level = tl.minimum(tl.maximum(level, 0.0), levels - 1.001)
    coarse = tl.floor(level)
    share = level - coarse
    fine = coarse.to(tl.int32)
    color = _level(texels, sizes, number, u, v, fine, mask)
    return _mixed(color, _level(texels, sizes, number, u, v, fine + 1, mask), share)


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
def _shadowed(bodies, sun, x, y, z, tile, lit):
    """Whether something is between points, given for the camera, and the sun."""
    poses, skins, count, shapes, side = bodies
    hidden = lit & (lit == 0)
    sun_x, sun_y, sun_z = tl.load(sun), tl.load(sun + 1), tl.load(sun + 2)
    number = 1
    while number < count:
        pose, skin = poses + number * _POSE, skins + number * _SKIN
        if rays.touches(pose + 29, tile):
            from_x, from_y, from_z = rays.turned(
                pose, x - tl.load(pose + 21), y - tl.load(pose + 22), z - tl.load(pose + 23)
            )
            to_x, to_y, to_z = rays.turned(pose, sun_x, sun_y, sun_z)
            zero = from_x * 0.0  # of the shape of the points
            to_x, to_y, to_z = zero + to_x, zero + to_y, zero + to_z
            found = rays.hit_body(
                pose, skin, shapes, side, from_x, from_y, from_z, to_x, to_y, to_z, lit
            )
            hidden = hidden | (found < _FAR)
        number += 1
    return hidden


@triton.jit
def _surroundings(scene, texels, sizes, x, y, z, mask):
    """Colours reflected from directions of the camera."""
    world_x, world_y, world_z = rays.turned(scene, x, y, z)
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
def _color(bodies, scene, texels, sizes, body, distance, along_x, along_y, tile, mask):
    """Colours, without fog, of bodies at distances along rays."""
    pose, skin = bodies[0] + body * _POSE, bodies[1] + body * _SKIN
    form = tl.load(skin).to(tl.int32)
    is_sky = body == 0
    length = tl.where(is_sky, 1.0, distance)
    x, y, z = rays.own_place(pose, body, distance, along_x, along_y)
    face = rays.face_axis(form, tl.load(skin + 19), x, y, z)
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
        at_x, at_y = distance * along_x + lift * to_x, distance * along_y + lift * to_y
        hidden = _shadowed(bodies, scene + 9, at_x, at_y, distance + lift * to_z, tile, lit)
        lit = lit & (hidden == 0)
        light = ambient + (1.0 - ambient) * tl.where(lit, tl.maximum(toward, 0.0), 0.0)
        bounced = turned_x * sun_x + turned_y * sun_y + turned_z * sun_z
        shine = tl.where(
            lit & (bounced > 0.0), tl.exp2(tl.log2(tl.maximum(bounced, 1e-12)) * _SHARPNESS), 0.0
        )
    light = tl.where(is_sky, 1.0, light)

    # texture
    paper_x, paper_y = rays.on_paper(skin, tl.load(pose + 24), x, y)
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
        image = _surroundings(scene, texels, sizes, turned_x, turned_y, turned_z, shown)
        red, green, blue = _mixed((red, green, blue), image, mirror)
    shine *= tl.load(skin + 11)
    return red + shine, green + shine, blue + shine


@triton.jit
def shade_pairs(
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
    height, width, tile, column, row, mask, first, pixel, focal, middle_x, middle_y = (
        rays.start_tile(sizes, scenes, tile_width, tile_height)
    )
    frame = tl.program_id(1)
    world, scene, size = frame % tl.load(sizes), scenes + frame * _SCENE, height * width
    bodies = rays.bodies_of(frame, world, poses, skins, counts, shapes, sizes)

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
            hit, at = rays.nearest_body(bodies, along_x, along_y, tile, edge)
            hit, at = tl.where(edge, hit, body), tl.where(edge, at, far)
        counts_here = mask & (edge | (column * 0 + sample == 0))
        more_red, more_green, more_blue = _color(
            bodies, scene, texels, sizes, hit, at, along_x, along_y, tile, counts_here
        )
        share = tl.where(edge, 0.25, 1.0)
        red += tl.where(counts_here, share * more_red, 0.0)
        green += tl.where(counts_here, share * more_green, 0.0)
        blue += tl.where(counts_here, share * more_blue, 0.0)
        sample += 1

    thick = 1.0 - tl.exp2(-far / tl.load(scene + 15) * 1.4426950408889634)
    tl.store(haze + first + pixel, thick, mask)
    fog += world * 4
    tint = (tl.load(fog + 1), tl.load(fog + 2), tl.load(fog + 3))
    red, green, blue = _mixed((red, green, blue), tint, thick * tl.load(fog))
    pane = tl.load(scene + 16)
    if pane > 0.0:  # a reflection that stays where it is
        u = tl.load(scene + 18) * tl.load(sizes + 6) + column * _PANE_SCALE
        v = tl.load(scene + 19) * tl.load(sizes + 5) + row * _PANE_SCALE
        number, level = u * 0.0 + tl.load(scene + 17), u * 0.0 + _SOFT
        image = _sample(texels, sizes, number, u, v, level, mask)
        red, green, blue = _mixed((red, green, blue), image, pane)
    target = color + 3 * first + pixel
    tl.store(target, red, mask)
    tl.store(target + size, green, mask)
    tl.store(target + 2 * size, blue, mask)


class PairCaster:
    """Sees pairs of frames: the two times of a layout."""

    def __init__(
        self, layout: world.Layout, textures: MipAtlas, shapes: Tensor, size: Size
    ) -> None:
        self.layout, self.textures, self.shapes, self.size = layout, textures, shapes, size
        device, frames = layout.pose.device, 2 * layout.batch
        numbers = [layout.batch, layout.pose.shape[2], *size, shapes.shape[-1], *textures.size]
        numbers += [textures.num_textures, textures.num_levels, *textures.firsts]
        self.sizes = torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)
        self.surface = torch.empty(frames, *size, dtype=torch.int16, device=device)
        self.distance = torch.empty(frames, *size, device=device)
        self.flow = torch.empty(frames, 2, *size, device=device)
        self.layer = torch.empty(frames, *size, dtype=torch.uint8, device=device)
        self._launch(rays.trace_pairs, frames, self.surface, self.distance, self.flow, self.layer)

    def occluded(self) -> Tensor:
        """(B, H, W) bool."""
        result = torch.empty_like(self.layer[: self.layout.batch], dtype=torch.int8)
        self._launch(rays.find_occluded, self.layout.batch, self.surface, self.distance, result)
        return result > 0

    def shade(self, fog: Tensor) -> tuple[Tensor, Tensor]:
        """(N, 3, H, W) colours and (N, 1, H, W) depth in [0, 1]."""
        frames, texels = 2 * self.layout.batch, self.textures.texels
        color, depth = (torch.empty(frames, c, *self.size, device=fog.device) for c in (3, 1))
        seen = (self.surface, self.distance, fog.contiguous(), texels, color, depth)
        self._launch(shade_pairs, frames, *seen)
        return color, depth

    def _launch(self, kernel: "triton.JITFunction", frames: int, *arguments: Tensor) -> None:
        height, width = self.size
        tiles = triton.cdiv(height, _TILE_HEIGHT) * triton.cdiv(width, _TILE_WIDTH)
        layout = self.layout
        parts = (layout.pose, layout.skin, layout.scene, layout.count, self.shapes, self.sizes)
        with torch.cuda.device_of(self.distance):
            kernel[(tiles, frames)](*parts, *arguments, _TILE_WIDTH, _TILE_HEIGHT, num_warps=_WARPS)
