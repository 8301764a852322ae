"""The matching net's first layer from its two factors, exact at borders and holes.

It sees F1(p) and F2(p+u) through a 3x3 window, both zero where F2(p+u) is not visible: outside
the image, or all zero. Where all nine taps are visible the layer is A(p) + B(p+u) + bias; where
none is, it is the bias alone: one pass over memory. The few other places are then corrected.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel
from .layout import check

_BLOCK = 2048  # numbers that a program adds
_CELLS = 1024  # pixels that a program looks at
_ROWS, _WARPS = 64, 4  # pixels that a program corrects at a time
_PROGRAMS = 512  # that correct: what a large GPU can hold at once


@kernel(do_not_specialize=["batch", "height", "width"])
def _see(visible, seen, batch, height, width, radius: tl.constexpr, cells: tl.constexpr):
    """Which of the nine taps around each pixel are visible, up to `radius` outside the image."""
    tall, wide = height + 2 * radius, width + 2 * radius
    place = tl.program_id(0) * cells + tl.arange(0, cells)
    in_map = place < batch * tall * wide
    image, y, x = place // (tall * wide), place // wide % tall - radius, place % wide - radius
    bits = tl.zeros((cells,), tl.int32)
    for tap in tl.static_range(9):
        row, column = y + tap // 3 - 1, x + tap % 3 - 1
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & in_map
        shown = tl.load(visible + (image * height + row) * width + column, inside, 0)
        bits += shown.to(tl.int32) << tap
    tl.store(seen + place, bits.to(tl.int16), in_map)


# Compiled once for all sizes: `channels` suffices for the alignment of the loads.
@kernel(do_not_specialize=["start", "count", "batch", "height", "width"])
def _add_parts(
    part1,
    part2,
    seen,
    bias,
    result,
    start,
    count,
    batch,
    height,
    width,
    radius: tl.constexpr,
    channels: tl.constexpr,
    block: tl.constexpr,
):
    """A run of numbers in one row of pixels, for one of `count` displacements of one image.

    Displacements of a run follow each other: what one has loaded, the others find in the cache.
    """
    num_shifts: tl.constexpr = 2 * radius + 1
    length = width * channels
    blocks = tl.cdiv(length, block)
    rank, run = tl.program_id(0) % count, tl.program_id(0) // count
    image, y = run // (blocks * height), run // blocks % height
    displacement = start + rank
    u, v = displacement // num_shifts, displacement % num_shifts  # from the corner of part 2
    flat = run % blocks * block + tl.arange(0, block)
    mask = flat < length
    moved = ((image * (height + 2 * radius) + y + v) * (width + 2 * radius) + u).to(tl.int64)
    value = tl.load(part1 + (image * height + y).to(tl.int64) * length + flat, mask, 0.0)
    value = value.to(tl.float32) + tl.load(part2 + moved * channels + flat, mask, 0.0)
    hidden = tl.load(seen + moved + flat // channels, mask, 1) == 0
    value = tl.where(hidden, 0.0, value)
    if bias is not None:
        value = tl.maximum(value + tl.load(bias + flat % channels, mask, 0.0), 0.0)
    row = ((rank * batch + image) * height + y).to(tl.int64)
    tl.store(result + row * length + flat, value.to(result.dtype.element_ty), mask)


@triton.jit
def _locate(place, start, batch, height, width, radius: tl.constexpr):
    """Of a flat index in (displacements, B, H, W): y, x, image, v, u, and the index in `seen`."""
    num_shifts: tl.constexpr = 2 * radius + 1
    y, x, item = place // width % height, place % width, place // (width * height)
    image, displacement = item % batch, start + item // batch
    v, u = displacement % num_shifts - radius, displacement // num_shifts - radius
    tall, wide = height + 2 * radius, width + 2 * radius
    return y, x, image, v, u, (image * tall + y + v + radius) * wide + x + u + radius


@kernel(do_not_specialize=["start", "batch", "height", "width", "total"])
def _list(
    seen,
    places,
    number,
    start,
    batch,
    height,
    width,
    total,
    radius: tl.constexpr,
    cells: tl.constexpr,
):
    """List the places to correct, in any order, and count them."""
    place = tl.program_id(0) * cells + tl.arange(0, cells)
    y, x, _, _, _, moved = _locate(place, start, batch, height, width, radius)
    bits = tl.load(seen + moved, place < total, 0)
    on_border = (y == 0) | (y == height - 1) | (x == 0) | (x == width - 1)
    partial = (bits != 0) & ((bits != 511) | on_border)
    rank = tl.cumsum(partial.to(tl.int32), 0)
    first = tl.atomic_add(number, tl.max(rank, 0))
    tl.store(places + first + rank - 1, place, partial)


@kernel(do_not_specialize=["start", "batch", "height", "width"])
def _correct(
    features1,
    features2,
    seen,
    places,
    number,
    taps,
    bias,
    result,
    start,
    batch,
    height,
    width,
    radius: tl.constexpr,
    channels: tl.constexpr,
    depth: tl.constexpr,
    columns: tl.constexpr,
    depth_columns: tl.constexpr,
    rows: tl.constexpr,
):
    """Every `num_programs`-th block of the listed places, by the definition of the layer."""
    column, inner = tl.arange(0, columns)[None, :], tl.arange(0, depth_columns)
    known, within = column < channels, (inner < depth)[None, :]
    weighted = (inner < depth)[:, None] & known
    if bias is not None:
        shift = tl.load(bias + column, known, 0.0).to(tl.float32)
    count = tl.load(number)
    for first in range(tl.program_id(0) * rows, count, tl.num_programs(0) * rows):
        listed = first + tl.arange(0, rows) < count
        place = tl.load(places + first + tl.arange(0, rows), listed, 0)
        y, x, image, v, u, moved = _locate(place, start, batch, height, width, radius)
        bits = tl.load(seen + moved, listed, 0).to(tl.int32)
        pixel = (image.to(tl.int64) * height + y) * width + x
        value = tl.zeros((rows, columns), tl.float32)
        for tap in range(9):
            dy, dx = tap // 3 - 1, tap % 3 - 1
            inside = (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width)
            mask = (inside & (((bits >> tap) & 1) != 0))[:, None] & within
            row = taps + (tap * 2 * depth + inner[:, None]) * channels + column
            source = (pixel + dy * width + dx)[:, None] * depth + inner[None, :]
            given = tl.load(features1 + source, mask, 0.0)
            value = tl.dot(given, tl.load(row, weighted, 0.0), value, input_precision="ieee")
            source += (v * width + u)[:, None] * depth
            given = tl.load(features2 + source, mask, 0.0)
            row += depth * channels
            value = tl.dot(given, tl.load(row, weighted, 0.0), value, input_precision="ieee")
        if bias is not None:
            value = tl.maximum(value + shift, 0.0)
        target = result + place.to(tl.int64)[:, None] * channels + column
        tl.store(target, value.to(result.dtype.element_ty), listed[:, None] & known)


def see(visible: Tensor, radius: int) -> Tensor:
    """(B, H, W) int8, one where a pixel is visible -> (B, H+2r, W+2r) int16: a bit for each tap."""
    batch, height, width = visible.shape
    size = (batch, height + 2 * radius, width + 2 * radius)
    seen = visible.new_empty(size, dtype=torch.int16)
    with torch.cuda.device_of(visible):
        _see[(triton.cdiv(seen.numel(), _CELLS),)](
            visible, seen, batch, height, width, radius=radius, cells=_CELLS
        )
    return seen


def first_layer(
    parts: tuple[Tensor, Tensor],
    features: tuple[Tensor, Tensor],
    seen: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    chunk: range,
) -> Tensor:
    """relu(first layer) of a `chunk` of displacements: (displacements · B, channels, H, W).

    Without a `bias`, also without ReLU.

    `parts` are A (B, channels, H, W) and B (B, channels, H+2r, W+2r), without the bias;
    `features` two (B, C, H, W) maps; `seen` begins with the result of `see`; `taps`
    (9·2C, channels).
    """
    for tensor in (*parts, *features):
        check(tensor)
    batch, channels, height, width = parts[0].shape
    depth, radius = features[0].shape[1], (parts[1].shape[-1] - width) // 2
    items = len(chunk) * batch
    result = torch.empty(
        (items, channels, height, width),
        dtype=parts[0].dtype,
        device=parts[0].device,
        memory_format=torch.channels_last,
    )
    total = items * height * width
    places, number = seen.new_empty(total, dtype=torch.int32), seen.new_zeros(1, dtype=torch.int32)
    size = (batch, height, width)
    where = (chunk.start, *size)
    with torch.cuda.device_of(result):
        _add_parts[(items * height * triton.cdiv(width * channels, _BLOCK),)](
            *parts,
            seen,
            bias,
            result,
            chunk.start,
            len(chunk),
            *size,
            radius=radius,
            channels=channels,
            block=_BLOCK,
        )
        _list[(triton.cdiv(total, _CELLS),)](
            seen, places, number, *where, total, radius=radius, cells=_CELLS
        )
        _correct[(min(triton.cdiv(total, _ROWS), _PROGRAMS),)](
            *features,
            seen,
            places,
            number,
            taps,
            bias,
            result,
            *where,
            radius=radius,
            channels=channels,
            depth=depth,
            columns=triton.next_power_of_2(channels),
            depth_columns=max(triton.next_power_of_2(depth), 16),
            rows=_ROWS,
            num_warps=_WARPS,
            num_stages=3 if result.element_size() == 2 else 2,
        )
    return result
