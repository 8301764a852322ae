"""The passes over all pixels as Triton kernels, with the results of the plain ones.

Rendering and the training step run at the same time and share the memory's bandwidth, so each
kernel is one pass instead of many: nothing of a single layer is written to memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import Size
from .scene import Scene
from .textures import TextureAtlas

_BLOCK, _WARPS = 256, 4
_FIELDS = tl.constexpr(18)  # numbers per layer: see `compose_layers`


@triton.jit
def cell_of(x, side):
    """Positions in [0, side - 1] -> the cell between two points, and the share of its right one."""
    left = tl.minimum(tl.floor(x), side - 2.0)
    return left.to(tl.int32), x - left


@triton.jit
def between(values, place, right, down, x, y, mask):
    """The value at x, y in [0, 1] between the four that start at `place`."""
    corner = values + place
    top_left = tl.load(corner, mask, 0.0).to(tl.float32)
    top = top_left + x * (tl.load(corner + right, mask, 0.0).to(tl.float32) - top_left)
    corner += down
    bottom_left = tl.load(corner, mask, 0.0).to(tl.float32)
    bottom = bottom_left + x * (tl.load(corner + right, mask, 0.0).to(tl.float32) - bottom_left)
    return top + y * (bottom - top)


@triton.jit
def mirrored(x, side):
    """Positions in px -> inside the texture, mirrored at its borders, at most half a pixel out."""
    away = tl.abs(x + 0.5)
    turns = tl.floor(away / side)
    rest = away - turns * side
    odd = turns - 2.0 * tl.floor(turns / 2.0)
    rest = tl.where(odd > 0.5, side - rest, rest)
    return tl.minimum(tl.maximum(rest - 0.5, 0.0), side - 1.0)


@triton.jit
def outline_at(shape, x, y, side, mask):
    """The value of an outline at positions in [-1, 1], those outside moved to its border."""
    half = (side - 1.0) * 0.5
    column, in_x = cell_of((tl.minimum(tl.maximum(x, -1.0), 1.0) + 1.0) * half, side)
    row, in_y = cell_of((tl.minimum(tl.maximum(y, -1.0), 1.0) + 1.0) * half, side)
    return between(shape, row * side + column, 1, side, in_x, in_y, mask)


@triton.jit
def _node_of(pixel, height, width, rows, columns):
    """Columns and rows of pixels, the node of a coarse grid before each, and its shares."""
    x, y = (pixel % width).to(tl.float32), (pixel // width).to(tl.float32)
    left, share_x = cell_of(x * ((columns - 1.0) / (width - 1.0)), columns)
    top, share_y = cell_of(y * ((rows - 1.0) / (height - 1.0)), rows)
    return x, y, top * columns + left, share_x, share_y


@triton.jit
def _offsets(flow, table, node, x, y, share_x, share_y, columns, moved, mask):
    """The flow of a layer, and positions in frame 2 relative to its centre."""
    flow_x = between(flow, node, 2, 2 * columns, share_x, share_y, mask)
    flow_y = between(flow + 1, node, 2, 2 * columns, share_x, share_y, mask)
    offset_x = x + moved * flow_x - tl.load(table)
    offset_y = y + moved * flow_y - tl.load(table + 1)
    return flow_x, flow_y, offset_x, offset_y


@triton.jit
def _texel(table, offset_x, offset_y, height, width):
    """The place of the first of four texels in the atlas, and the shares of the others."""
    place_x = tl.load(table + 6) * offset_x + tl.load(table + 7) * offset_y + tl.load(table + 10)
    place_y = tl.load(table + 8) * offset_x + tl.load(table + 9) * offset_y + tl.load(table + 11)
    left, share_x = cell_of(mirrored(((place_x + 1.0) * width - 1.0) * 0.5, width), width)
    top, share_y = cell_of(mirrored(((place_y + 1.0) * height - 1.0) * 0.5, height), height)
    number = tl.load(table + 12).to(tl.int64)
    return ((number * height + top) * width + left) * 3, share_x, share_y


@triton.jit(do_not_specialize=["scenes", "layers", "height", "width", "rows", "columns"])
def _compose(
    flow,
    outline,
    tables,
    nearest,
    fog,
    textures,
    color,
    motion,
    depth,
    visible,
    scenes,
    layers,
    height,
    width,
    rows,
    columns,
    side,
    texture_height,
    texture_width,
    block: tl.constexpr,
):
    """A run of pixels of one frame; frames 1 of all scenes come first."""
    frame = tl.program_id(1)
    scene = frame % scenes
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    size = height * width
    mask = pixel < size
    x, y, node, share_x, share_y = _node_of(pixel, height, width, rows, columns)
    node *= 2
    moved = (frame < scenes).to(tl.float32)  # layers are defined in frame 2

    front = tl.zeros((block,), tl.int32)
    behind = tl.zeros((block,), tl.int32)
    edge = tl.full((block,), 1.0, tl.float32)
    last = tl.load(nearest + scene)
    layer = 1
    while layer <= last:
        number = scene * layers + layer
        table = tables + number * _FIELDS
        offset_x, offset_y = x - tl.load(table), y - tl.load(table + 1)
        if frame < scenes:
            nodes = flow + number * rows * columns * 2
            offset_x += between(nodes, node, 2, 2 * columns, share_x, share_y, mask)
            offset_y += between(nodes + 1, node, 2, 2 * columns, share_x, share_y, mask)
        place_x = tl.load(table + 2) * offset_x + tl.load(table + 3) * offset_y
        place_y = tl.load(table + 4) * offset_x + tl.load(table + 5) * offset_y
        shape = outline + (number - scene - 1) * side * side  # the background has none
        inside = outline_at(shape, place_x, place_y, side, mask)
        seen = inside > 0.0
        behind = tl.where(seen & (edge >= 0.5), front, behind)
        front = tl.where(seen, layer, front)
        edge = tl.where(seen, inside, edge)
        layer += 1

    cover = tl.minimum(edge, 1.0)
    in_front = edge >= 0.5
    number1, number2 = scene * layers + front, scene * layers + behind
    table1, table2 = tables + number1 * _FIELDS, tables + number2 * _FIELDS
    nodes1, nodes2 = flow + number1 * rows * columns * 2, flow + number2 * rows * columns * 2
    flow1_x, flow1_y, offset1_x, offset1_y = _offsets(
        nodes1, table1, node, x, y, share_x, share_y, columns, moved, mask
    )
    flow2_x, flow2_y, offset2_x, offset2_y = _offsets(
        nodes2, table2, node, x, y, share_x, share_y, columns, moved, mask
    )
    first = frame.to(tl.int64) * size  # of the frame
    tl.store(motion + 2 * first + pixel, tl.where(in_front, flow1_x, flow2_x), mask)
    tl.store(motion + 2 * first + size + pixel, tl.where(in_front, flow1_y, flow2_y), mask)
    tl.store(visible + first + pixel, tl.where(in_front, front, behind).to(tl.uint8), mask)
    far = tl.load(table2 + 17)
    far += cover * (tl.load(table1 + 17) - far)
    tl.store(depth + first + pixel, far, mask)

    through = mask & (cover < 1.0)
    place1, in1_x, in1_y = _texel(table1, offset1_x, offset1_y, texture_height, texture_width)
    place2, in2_x, in2_y = _texel(table2, offset2_x, offset2_y, texture_height, texture_width)
    for channel in tl.static_range(3):
        source, down = textures + channel, 3 * texture_width
        near = between(source, place1, 3, down, in1_x, in1_y, mask)
        near = near * tl.load(table1 + 13 + channel) + tl.load(table1 + 16)
        mixed = between(source, place2, 3, down, in2_x, in2_y, through)
        mixed = mixed * tl.load(table2 + 13 + channel) + tl.load(table2 + 16)
        mixed += cover * (near - mixed)
        tint = tl.load(fog + scene * 4 + 1 + channel)
        mixed += far * tl.load(fog + scene * 4) * (tint - mixed)
        tl.store(color + 3 * first + channel * size + pixel, mixed, mask)


@triton.jit(do_not_specialize=["height", "width"])
def _smear(frames, path, result, height, width, taps: tl.constexpr, block: tl.constexpr):
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    size = height * width
    mask = pixel < size
    first = tl.program_id(1).to(tl.int64) * size
    step_x = tl.load(path + 2 * first + pixel, mask, 0.0) / (taps - 1)
    step_y = tl.load(path + 2 * first + size + pixel, mask, 0.0) / (taps - 1)
    x, y = (pixel % width).to(tl.float32), (pixel // width).to(tl.float32)
    red = tl.zeros((block,), tl.float32)
    green = tl.zeros((block,), tl.float32)
    blue = tl.zeros((block,), tl.float32)
    source = frames + 3 * first
    for tap in tl.static_range(taps):
        at_x = tl.minimum(tl.maximum(x + step_x * (tap - (taps - 1) / 2), 0.0), width - 1.0)
        at_y = tl.minimum(tl.maximum(y + step_y * (tap - (taps - 1) / 2), 0.0), height - 1.0)
        left, in_x = cell_of(at_x, width)
        top, in_y = cell_of(at_y, height)
        place = top * width + left
        red += between(source, place, 1, width, in_x, in_y, mask)
        green += between(source + size, place, 1, width, in_x, in_y, mask)
        blue += between(source + 2 * size, place, 1, width, in_x, in_y, mask)
    target = result + 3 * first + pixel
    tl.store(target, red / taps, mask)
    tl.store(target + size, green / taps, mask)
    tl.store(target + 2 * size, blue / taps, mask)


@triton.jit(do_not_specialize=["height", "width"])
def _box_blur(frames, result, height, width, radius: tl.constexpr, block: tl.constexpr):
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    mask = pixel < height * width
    first = tl.program_id(1).to(tl.int64) * height * width
    x, y = pixel % width, pixel // width
    total = tl.zeros((block,), tl.float32)
    for row in tl.static_range(-radius, radius + 1):
        at_y = tl.minimum(tl.maximum(y + row, 0), height - 1)
        for column in tl.static_range(-radius, radius + 1):
            at_x = tl.minimum(tl.maximum(x + column, 0), width - 1)
            total += tl.load(frames + first + at_y * width + at_x, mask, 0.0)
    tl.store(result + first + pixel, total / ((2 * radius + 1) * (2 * radius + 1)), mask)


@triton.jit(do_not_specialize=["height", "width", "rows", "columns"])
def _recolor(
    image,
    matrix,
    offset,
    light,
    gamma,
    result,
    height,
    width,
    rows,
    columns,
    lowest: tl.constexpr,
    lit: tl.constexpr,
    block: tl.constexpr,
):
    frame = tl.program_id(1)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    size = height * width
    mask = pixel < size
    first = 3 * frame.to(tl.int64) * size
    red = tl.load(image + first + pixel, mask, 0.0)
    green = tl.load(image + first + size + pixel, mask, 0.0)
    blue = tl.load(image + first + 2 * size + pixel, mask, 0.0)
    if lit:
        _, _, node, in_x, in_y = _node_of(pixel, height, width, rows, columns)
        bright = between(light + frame * rows * columns, node, 1, columns, in_x, in_y, mask)
        red, green, blue = red * bright, green * bright, blue * bright
    for channel in tl.static_range(3):
        row = matrix + frame * 9 + channel * 3
        mixed = tl.load(offset + frame) + tl.load(row) * red
        mixed += tl.load(row + 1) * green + tl.load(row + 2) * blue
        mixed = tl.minimum(tl.maximum(mixed, lowest), 1.0)
        if lit:
            mixed = tl.exp2(tl.load(gamma + frame) * tl.log2(mixed))
        tl.store(result + first + channel * size + pixel, mixed, mask)


def _launch(kernel: Any, frames: Tensor, *arguments: Any, **constants: Any) -> None:
    """Run a kernel for all pixels of frames (N, C, H, W)."""
    runs = triton.cdiv(frames.shape[2] * frames.shape[3], _BLOCK)
    with torch.cuda.device_of(frames):
        kernel[(runs, len(frames))](*arguments, **constants, block=_BLOCK, num_warps=_WARPS)


def compose_layers(
    scene: Scene, fog: Tensor, textures: TextureAtlas, size: Size
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return colour, flow, depth and visible layer, as `renderer.compose` does."""
    batch, layers, rows, columns = scene.flow.shape[:4]
    frames, device = 2 * batch, fog.device
    color, motion, depth = (torch.empty(frames, c, *size, device=device) for c in (3, 2, 1))
    visible = torch.empty(frames, *size, dtype=torch.uint8, device=device)
    present = scene.outline.amax((2, 3)) > 0
    nearest = (present * torch.arange(1, layers, device=device)).amax(1)
    objects = torch.nn.functional.pad(scene.to_outline.flatten(2), (0, 0, 1, 0))
    parts = [
        scene.center,  # 0, 1
        objects,  # 2 to 5
        scene.to_texture.flatten(2),  # 6 to 9
        scene.origin,  # 10, 11
        scene.number[..., None],  # 12
        scene.gain,  # 13 to 15
        scene.offset,  # 16
        scene.depth,  # 17
    ]
    layout = scene.flow.contiguous(), scene.outline.contiguous(), torch.cat(parts, -1)
    looks = nearest.int(), fog.contiguous(), textures.images
    numbers = {"scenes": batch, "layers": layers, "rows": rows, "columns": columns}
    numbers |= {"height": size[0], "width": size[1], "side": scene.outline.shape[-1]}
    numbers |= {"texture_height": textures.size[0], "texture_width": textures.size[1]}
    _launch(_compose, color, *layout, *looks, color, motion, depth, visible, **numbers)
    return color, motion, depth, visible


def smear(frames: Tensor, path: Tensor, taps: int) -> Tensor:
    """Average (N, 3, H, W) over `taps` points of a line `path` (N, 2, H, W) about each pixel."""
    frames, result = frames.contiguous(), torch.empty_like(frames)
    _launch(_smear, frames, frames, path.contiguous(), result, *frames.shape[2:], taps=taps)
    return result


def box_blur(frames: Tensor, radius: int) -> Tensor:
    """Average (N, C, H, W) over squares, the border repeated."""
    flat = frames.contiguous().flatten(0, 1)[:, None]
    result = torch.empty_like(flat)
    _launch(_box_blur, flat, flat, result, *flat.shape[2:], radius=radius)
    return result.view_as(frames)


def recolor(
    image: Tensor,
    matrix: Tensor,
    offset: Tensor,
    exposure: tuple[Tensor, Tensor] | None,
    lowest: float,
) -> Tensor:
    """See `camera.recolor`; colours are at least `lowest` before the power."""
    image, result = image.contiguous(), torch.empty_like(image)
    light, gamma = (part.contiguous() for part in exposure) if exposure else (None, None)
    grid = (0, 0) if light is None else light.shape[2:]
    inputs = image, matrix.contiguous(), offset.contiguous(), light, gamma, result
    sizes = (*image.shape[2:], *grid)
    _launch(_recolor, image, *inputs, *sizes, lowest=lowest, lit=light is not None)
    return result
