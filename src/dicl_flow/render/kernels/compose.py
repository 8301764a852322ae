"""All layers of a scene composed in one pass: nothing of a single layer is written to memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..scene import Scene
from ..textures import TextureAtlas
from .bilinear import between, cell_of, mirrored

_BLOCK, _WARPS = 256, 4
_FIELDS = tl.constexpr(18)  # numbers per layer: see `_layer_table`


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
    x, y = (pixel % width).to(tl.float32), (pixel // width).to(tl.float32)
    left, share_x = cell_of(x * ((columns - 1.0) / (width - 1.0)), columns)
    top, share_y = cell_of(y * ((rows - 1.0) / (height - 1.0)), rows)
    node = (top * columns + left) * 2
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
        half = (side - 1.0) * 0.5
        column, in_x = cell_of((tl.minimum(tl.maximum(place_x, -1.0), 1.0) + 1.0) * half, side)
        row, in_y = cell_of((tl.minimum(tl.maximum(place_y, -1.0), 1.0) + 1.0) * half, side)
        shape = outline + (number - scene - 1) * side * side  # the background has none
        inside = between(shape, row * side + column, 1, side, in_x, in_y, mask)
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


def compose_layers(
    scene: Scene, fog: Tensor, textures: TextureAtlas, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return colour, flow, depth and visible layer, as `compose` does."""
    batch, layers, rows, columns = scene.flow.shape[:4]
    frames, device = 2 * batch, fog.device
    color, motion, depth = (torch.empty(frames, c, *size, device=device) for c in (3, 2, 1))
    visible = torch.empty(frames, *size, dtype=torch.uint8, device=device)
    present = scene.outline.amax((2, 3)) > 0
    nearest = (present * torch.arange(1, layers, device=device)).amax(1)
    with torch.cuda.device_of(fog):
        _compose[(triton.cdiv(size[0] * size[1], _BLOCK), frames)](
            scene.flow.contiguous(),
            scene.outline.contiguous(),
            _layer_table(scene),
            nearest.int(),
            fog.contiguous(),
            textures.images,
            color,
            motion,
            depth,
            visible,
            batch,
            layers,
            *size,
            rows,
            columns,
            scene.outline.shape[-1],
            *textures.size,
            block=_BLOCK,
            num_warps=_WARPS,
        )
    return color, motion, depth, visible


def _layer_table(scene: Scene) -> Tensor:
    """(B, D, 18): all numbers of a layer in one row."""
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
    return torch.cat(parts, -1)
