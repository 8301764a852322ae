"""Blur and colours of whole frames, each in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .bilinear import between, cell_of

_BLOCK, _WARPS = 256, 4
_SIZES = ("height", "width")


@triton.jit(do_not_specialize=_SIZES)
def _smear(
    frames,
    path,
    result,
    height,
    width,
    taps: tl.constexpr,
    block: tl.constexpr,
):
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


@triton.jit(do_not_specialize=_SIZES)
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


@triton.jit(do_not_specialize=[*_SIZES, "rows", "columns"])
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
        x, y = (pixel % width).to(tl.float32), (pixel // width).to(tl.float32)
        left, in_x = cell_of(x * ((columns - 1.0) / (width - 1.0)), columns)
        top, in_y = cell_of(y * ((rows - 1.0) / (height - 1.0)), rows)
        factors = light + frame * rows * columns
        bright = between(factors, top * columns + left, 1, columns, in_x, in_y, mask)
        red, green, blue = red * bright, green * bright, blue * bright
    for channel in tl.static_range(3):
        row = matrix + frame * 9 + channel * 3
        mixed = tl.load(offset + frame) + tl.load(row) * red
        mixed += tl.load(row + 1) * green + tl.load(row + 2) * blue
        mixed = tl.minimum(tl.maximum(mixed, lowest), 1.0)
        if lit:
            mixed = tl.exp2(tl.load(gamma + frame) * tl.log2(mixed))
        tl.store(result + first + channel * size + pixel, mixed, mask)


def smear(frames: Tensor, path: Tensor, taps: int) -> Tensor:
    """Average (N, 3, H, W) over `taps` points of a line `path` (N, 2, H, W) about each pixel."""
    frames, result = frames.contiguous(), torch.empty_like(frames)
    size = frames.shape[2:]
    with torch.cuda.device_of(frames):
        _smear[_grid(frames)](
            frames, path.contiguous(), result, *size, taps=taps, block=_BLOCK, num_warps=_WARPS
        )
    return result


def box_blur(frames: Tensor, radius: int) -> Tensor:
    """Average (N, C, H, W) over squares, the border repeated."""
    flat = frames.contiguous().flatten(0, 1)[:, None]
    result = torch.empty_like(flat)
    with torch.cuda.device_of(flat):
        _box_blur[_grid(flat)](
            flat, result, *flat.shape[2:], radius=radius, block=_BLOCK, num_warps=_WARPS
        )
    return result.view_as(frames)


def recolor(
    image: Tensor,
    matrix: Tensor,
    offset: Tensor,
    exposure: tuple[Tensor, Tensor] | None,
    lowest: float,
) -> Tensor:
    """See `colors.recolor`; colours are at least `lowest` before the power."""
    image, result = image.contiguous(), torch.empty_like(image)
    light, gamma = (part.contiguous() for part in exposure) if exposure else (None, None)
    rows, columns = (0, 0) if light is None else light.shape[2:]
    with torch.cuda.device_of(image):
        _recolor[_grid(image)](
            image,
            matrix.contiguous(),
            offset.contiguous(),
            light,
            gamma,
            result,
            *image.shape[2:],
            rows,
            columns,
            lowest=lowest,
            lit=light is not None,
            block=_BLOCK,
            num_warps=_WARPS,
        )
    return result


def _grid(frames: Tensor) -> tuple[int, int]:
    return triton.cdiv(frames.shape[2] * frames.shape[3], _BLOCK), len(frames)
