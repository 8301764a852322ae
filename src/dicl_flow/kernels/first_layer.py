"""The matching net's first layer from its two factors, exact at borders and holes, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import check

_SIDE = 8  # pixels on a side of a tile
_WARPS = 8


@triton.jit
def _window(visible, y, x, u, v, tap, height, width):
    """Flat indices of the pixel at `tap` and of its partner (u, v) away, and if both are seen."""
    y1, x1 = y + tap // 3 - 1, x + tap % 3 - 1
    y2, x2 = y1 + v, x1 + u
    inside = (y1 >= 0) & (y1 < height) & (x1 >= 0) & (x1 < width)
    inside &= (y2 >= 0) & (y2 < height) & (x2 >= 0) & (x2 < width)
    seen = tl.load(visible + y2 * width + x2, inside, 0) != 0
    return y1 * width + x1, y2 * width + x2, seen


# One compilation serves all sizes: what the loads need to know of alignment is in `channels`.
@triton.jit(do_not_specialize=["start", "batch", "height", "width"])
def _first_layer(
    part1,
    part2,
    features1,
    features2,
    visible,
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
    side: tl.constexpr,
):
    """A tile of pixels for one displacement of one image."""
    num_shifts: tl.constexpr = 2 * radius + 1
    tiles_x = tl.cdiv(width, side)
    num_tiles = tiles_x * tl.cdiv(height, side)
    item, tile = tl.program_id(0) // num_tiles, tl.program_id(0) % num_tiles
    image, displacement = item % batch, start + item // batch
    u, v = displacement // num_shifts - radius, displacement % num_shifts - radius
    index = tl.arange(0, side * side)
    y, x = tile // tiles_x * side + index // side, tile % tiles_x * side + index % side
    in_image = (y < height) & (x < width)
    column = tl.arange(0, columns)[None, :]
    known = column < channels
    # Offsets within an image are 32 bits wide, those of images 64.
    size, wide = height * width, width + 2 * radius
    image = image.to(tl.int64)
    visible += image * size

    count = tl.zeros((side * side,), tl.int32)
    for tap in range(9):
        _, _, seen = _window(visible, y, x, u, v, tap, height, width)
        count += seen.to(tl.int32)
    partial = (count > 0) & (count < 9) & in_image
    shift = tl.load(bias + column, known, 0.0).to(tl.float32)
    exact = tl.zeros((side * side, columns), tl.float32)
    if tl.max(partial.to(tl.int32), 0) > 0:
        features1 += image * size * depth
        features2 += image * size * depth
        inner = tl.arange(0, depth_columns)
        weighted = (inner < depth)[:, None] & known
        for tap in range(9):
            first, second, seen = _window(visible, y, x, u, v, tap, height, width)
            loaded = (seen & in_image)[:, None] & (inner < depth)[None, :]
            given = tl.load(features1 + first[:, None] * depth + inner[None, :], loaded, 0.0)
            row = taps + (tap * 2 * depth + inner[:, None]) * channels + column
            exact = tl.dot(given, tl.load(row, weighted, 0.0), exact, input_precision="ieee")
            given = tl.load(features2 + second[:, None] * depth + inner[None, :], loaded, 0.0)
            row += depth * channels
            exact = tl.dot(given, tl.load(row, weighted, 0.0), exact, input_precision="ieee")

    mask = in_image[:, None] & known
    part1 += image * size * channels
    part2 += image * (height + 2 * radius) * wide * channels
    moved = (y + v + radius) * wide + x + u + radius
    pixel = (y * width + x)[:, None] * channels + column
    value = tl.load(part1 + pixel, mask, 0.0).to(tl.float32)
    value += tl.load(part2 + moved[:, None] * channels + column, mask, 0.0)
    # Where nothing is seen, `exact` is zero: the bias alone.
    value = tl.where(count[:, None] == 9, value, exact + shift)
    value = tl.maximum(value, 0.0).to(result.dtype.element_ty)
    tl.store(result + item.to(tl.int64) * size * channels + pixel, value, mask)


def first_layer(
    parts: tuple[Tensor, Tensor],
    features: tuple[Tensor, Tensor],
    visible: Tensor,
    taps: Tensor,
    bias: Tensor,
    chunk: range,
) -> Tensor:
    """relu(first layer) of a `chunk` of displacements: (displacements · B, channels, H, W).

    `parts` are A (B, channels, H, W), which holds the bias, and B (B, channels, H+2r, W+2r);
    `features` two (B, C, H, W) maps, `visible` (B, H, W) int8; `taps` (9·2C, channels).
    """
    for tensor in (*parts, *features):
        check(tensor)
    batch, channels, height, width = parts[0].shape
    depth = features[0].shape[1]
    result = torch.empty(
        (len(chunk) * batch, channels, height, width),
        dtype=parts[0].dtype,
        device=parts[0].device,
        memory_format=torch.channels_last,
    )
    tiles = triton.cdiv(height, _SIDE) * triton.cdiv(width, _SIDE)
    with torch.cuda.device_of(result):
        _first_layer[(len(chunk) * batch * tiles,)](
            *parts,
            *features,
            visible,
            taps,
            bias,
            result,
            chunk.start,
            batch,
            height,
            width,
            radius=(parts[1].shape[-1] - width) // 2,
            channels=channels,
            depth=depth,
            columns=triton.next_power_of_2(channels),
            depth_columns=max(triton.next_power_of_2(depth), 16),
            side=_SIDE,
            num_warps=_WARPS,
            num_stages=1,  # most tiles take no part in the loop: let more of them be resident
            maxnreg=128,
        )
    return result
