"""The first layer from its two terms, and its partial windows: each may be computed first."""

import torch
from torch import Tensor

from ..kernels import check, kernel, new_map, product_side, tl, triton

ALL = tl.constexpr(511)  # bits of nine taps
_CELLS = tl.constexpr(1024)  # pixels that a program looks at
_RUN = tl.constexpr(16)  # pixels of a program that adds
_ALIGNED = tl.constexpr(4)  # int32 in 16 bytes: kernels are compiled for such addresses
_MANY = 1 << 17  # pixels of all displacements: from here on the device is full
_DEEPEST = 64  # channels of the features that are multiplied at a time: more need too much memory
_PROGRAMS = 512  # that correct: what a large GPU can hold at once


@kernel("batch height width")
def _find_visible_taps(visible, seen, counters, batch, height, width, radius: tl.constexpr):
    """Which of the nine taps around each pixel are visible, up to `radius` outside the image."""
    side: tl.constexpr = 2 * radius + 1
    num_counters: tl.constexpr = triton.next_power_of_2(side * side) * _ALIGNED
    if tl.program_id(0) == 0:
        tl.store(counters + tl.arange(0, num_counters), tl.zeros((num_counters,), tl.int32))
    tall, wide = height + 2 * radius, width + 2 * radius
    place = tl.program_id(0) * _CELLS + tl.arange(0, _CELLS)
    in_map = place < batch * tall * wide
    image, y, x = place // (tall * wide), place // wide % tall - radius, place % wide - radius
    bits = tl.zeros((_CELLS,), tl.int32)
    for tap in tl.static_range(9):
        row, column = y + tap // 3 - 1, x + tap % 3 - 1
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & in_map
        shown = tl.load(visible + (image * height + row) * width + column, inside, 0)
        bits += shown.to(tl.int32) << tap
    tl.store(seen + place, bits.to(tl.int16), in_map)


@triton.jit
def _is_partial(bits, y, x, height, width):
    """Whether some taps are visible, and some are not or lie outside frame 1."""
    on_border = (y == 0) | (y == height - 1) | (x == 0) | (x == width - 1)
    return (bits != 0) & ((bits != ALL) | on_border)


# Compiled once for all sizes: `channels` suffices for the alignment of the loads.
@kernel("start stop batch height width")
def _add_terms(
    term1,
    term2,
    seen,
    bias,
    result,
    start,
    stop,
    batch,
    height,
    width,
    radius: tl.constexpr,
    channels: tl.constexpr,
    across: tl.constexpr,
):
    """A run of pixels, for `across` displacements side by side: they share most of both terms."""
    num_shifts: tl.constexpr = 2 * radius + 1
    columns: tl.constexpr = triton.next_power_of_2(channels)
    size, v = height * width, tl.program_id(1)
    place = tl.program_id(0) * _RUN + tl.arange(0, _RUN)
    there = place < batch * size
    image, y, x = place // size, place // width % height, place % width
    corner = (image * (height + 2 * radius) + y + v) * (width + 2 * radius) + x
    column = tl.arange(0, columns)[None, :]
    known = column < channels
    row = place.to(tl.int64)[:, None] * channels + column
    first_term = tl.load(term1 + row, there[:, None] & known, 0.0).to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + column, known, 0.0).to(tl.float32)
    for step in tl.static_range(across):
        u = start // num_shifts + tl.program_id(2) * across + step
        number = u * num_shifts + v - start
        wanted = place < tl.where((number >= 0) & (number < stop - start), batch * size, 0)
        bits = tl.load(seen + corner + u, wanted, 0)
        moved = (corner + u).to(tl.int64)[:, None] * channels + column
        value = first_term + tl.load(term2 + moved, wanted[:, None] & known, 0.0)
        value = tl.where((bits == 0)[:, None], 0.0, value)
        if bias is not None:
            value = tl.maximum(value + shift, 0.0)
        complete = wanted & ~_is_partial(bits, y, x, height, width)
        target = result + number.to(tl.int64) * batch * size * channels + row
        tl.store(target, value.to(result.dtype.element_ty), complete[:, None] & known)


@triton.jit
def _locate(place, start, batch, height, width, radius: tl.constexpr):
    """Of a flat index in (displacements, B, H, W): y, x, image, v, u, and the index in `seen`."""
    num_shifts: tl.constexpr = 2 * radius + 1
    y, x, item = place // width % height, place % width, place // (width * height)
    image, displacement = item % batch, start + item // batch
    v, u = displacement % num_shifts - radius, displacement // num_shifts - radius
    tall, wide = height + 2 * radius, width + 2 * radius
    return y, x, image, v, u, (image * tall + y + v + radius) * wide + x + u + radius


@kernel("start batch height width total")
def _list(seen, windows, counter, start, batch, height, width, total, radius: tl.constexpr):
    """List the partial windows, in any order, and count them."""
    place = tl.program_id(0) * _CELLS + tl.arange(0, _CELLS)
    y, x, _, _, _, moved = _locate(place, start, batch, height, width, radius)
    bits = tl.load(seen + moved, place < total, 0)
    partial = _is_partial(bits, y, x, height, width)
    rank = tl.cumsum(partial.to(tl.int32), 0)
    first = tl.atomic_add(counter, tl.max(rank, 0))
    tl.store(windows + first + rank - 1, place, partial)


@kernel("start batch height width")
def _correct(
    features1,
    features2,
    seen,
    windows,
    counter,
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
    depth_columns: tl.constexpr,
    rows: tl.constexpr,
):
    """Every `num_programs`-th block of the listed windows, by the definition of the layer."""
    columns: tl.constexpr = triton.next_power_of_2(channels)
    column = tl.arange(0, columns)[None, :]
    known = column < channels
    parts: tl.constexpr = (depth + depth_columns - 1) // depth_columns
    if bias is not None:
        shift = tl.load(bias + column, known, 0.0).to(tl.float32)
    count = tl.load(counter)
    for first in range(tl.program_id(0) * rows, count, tl.num_programs(0) * rows):
        listed = first + tl.arange(0, rows) < count
        place = tl.load(windows + first + tl.arange(0, rows), listed, 0)
        y, x, image, v, u, moved = _locate(place, start, batch, height, width, radius)
        bits = tl.load(seen + moved, listed, 0).to(tl.int32)
        pixel = (image.to(tl.int64) * height + y) * width + x
        value = tl.zeros((rows, columns), tl.float32)
        for step in range(9 * parts):
            tap, inner = step // parts, step % parts * depth_columns + tl.arange(0, depth_columns)
            within = inner < depth
            weighted = within[:, None] & known
            dy, dx = tap // 3 - 1, tap % 3 - 1
            inside = (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width)
            mask = (inside & (((bits >> tap) & 1) != 0))[:, None] & within[None, :]
            row = taps + (tap * 2 * depth + inner[:, None]) * channels + column
            source = (pixel + dy * width + dx)[:, None] * depth + inner[None, :]
            feature = tl.load(features1 + source, mask, 0.0)
            value = tl.dot(feature, tl.load(row, weighted, 0.0), value, input_precision="ieee")
            source += (v * width + u)[:, None] * depth
            feature = tl.load(features2 + source, mask, 0.0)
            row += depth * channels
            value = tl.dot(feature, tl.load(row, weighted, 0.0), value, input_precision="ieee")
        if bias is not None:
            value = tl.maximum(value + shift, 0.0)
        target = result + place.to(tl.int64)[:, None] * channels + column
        tl.store(target, value.to(result.dtype.element_ty), listed[:, None] & known)


def find_visible_taps(visible: Tensor, radius: int) -> tuple[Tensor, Tensor]:
    """(B, H, W) int8, one where a pixel is visible -> (B, H+2r, W+2r) int16: a bit for each tap.

    Also rows of zeros to count with, for as many calls of `correct` as there are displacements.
    """
    batch, height, width = visible.shape
    size = (batch, height + 2 * radius, width + 2 * radius)
    seen = visible.new_empty(size, dtype=torch.int16)
    num_counters = triton.next_power_of_2((2 * radius + 1) ** 2) * _ALIGNED.value
    counters = visible.new_empty(num_counters, dtype=torch.int32)
    _find_visible_taps[(triton.cdiv(seen.numel(), _CELLS.value),)](
        visible, seen, counters, *visible.shape, radius=radius
    )
    return seen, counters.view(-1, _ALIGNED.value)


def new_layer(term: Tensor, chunk: range) -> Tensor:
    """Memory for a `chunk` of displacements: (displacements · B, channels, H, W) like `term`.

    `add_terms` and `correct` fill it, in any order.
    """
    check(term)
    _, channels, height, width = term.shape
    return new_map((len(chunk) * len(term), channels, height, width), term)


def add_terms(
    result: Tensor, terms: tuple[Tensor, Tensor], seen: Tensor, bias: Tensor | None, chunk: range
) -> None:
    """relu(A(p) + B(p+u) + bias) where all taps are visible; relu(bias) where none is.

    Without a bias, also without ReLU.
    `terms` are A (B, channels, H, W) and B (B, channels, H+2r, W+2r), without the bias; `seen` is
    the result of `find_visible_taps`.
    """
    for term in terms:
        check(term)
    batch, channels, height, width = terms[0].shape
    radius = (terms[1].shape[-1] - width) // 2
    num_shifts, pixels = 2 * radius + 1, batch * height * width
    columns_of_shifts = (chunk.stop - 1) // num_shifts - chunk.start // num_shifts + 1
    across = columns_of_shifts if len(chunk) * pixels >= _MANY else 1
    sizes = (chunk.start, chunk.stop, batch, height, width)
    grid = (triton.cdiv(pixels, _RUN.value), num_shifts, columns_of_shifts // across)
    shape = {"radius": radius, "channels": channels, "across": across}
    _add_terms[grid](*terms, seen, bias, result, *sizes, **shape)


def correct(
    result: Tensor,
    features: tuple[Tensor, Tensor],
    seen: Tensor,
    counter: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    chunk: range,
) -> None:
    """relu(first layer) of partial windows, by its definition; without a bias, without ReLU.

    `features` are two (B, C, H, W) maps, `seen` and the row `counter` are results of
    `find_visible_taps`, `taps` are (9·2C, channels).
    """
    for tensor in (result, *features):
        check(tensor)
    batch, depth, height, width = features[0].shape
    channels, radius, total = result.shape[1], (seen.shape[-1] - width) // 2, result[:, 0].numel()
    rows = 64 if total >= _MANY else 32
    windows = seen.new_empty(total, dtype=torch.int32)
    where, known = (chunk.start, batch, height, width), (seen, windows, counter)
    _list[(triton.cdiv(total, _CELLS.value),)](*known, *where, total, radius=radius)
    shape = {"radius": radius, "channels": channels, "depth": depth, "rows": rows}
    shape["depth_columns"] = min(product_side(depth), _DEEPEST)
    shape["num_stages"] = 3 if result.element_size() == 2 else 2
    grid = (min(triton.cdiv(total, rows), _PROGRAMS),)
    _correct[grid](*features, *known, taps, bias, result, *where, **shape)
