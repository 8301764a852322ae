"""The two losses of training as kernels, with their gradients; the same input gives the same bits.

Matching: the cross-entropy of scores with the motion at four points of each cell. The target of a
displacement is the product of two hats around the remaining motion: bilinear weights without a
gather, and without a scatter in the gradient.

Flow: the sum of end-point errors at full size of a flow that is smaller. The pixels between four
neighbouring cells of the flow are a patch: all are interpolated from these cells, with corners
aligned. One kernel adds up the errors of each patch, and what each of its corners gets of the
gradient; backward, another adds the parts of the patches around each cell.
"""

from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernels import kernel, tl, triton
from .readout import displacements, exponentials

_SCORES = 4096  # of a program
_TILE, _FEWEST = 512, 16  # pixels of a program at a time, and of each of its patches
_CELLS = 512  # of a program, backward


@triton.jit
def _hat(distance):
    return tl.maximum(1.0 - tl.abs(distance), 0.0)


@triton.jit
def _targets(rest, count, pixel, there, index, size, side: tl.constexpr):
    """The sum over four points of weight times target, and of the weights."""
    u, v = displacements(index, side)
    image, place = pixel // size, pixel % size
    target = tl.zeros((pixel.shape[0], index.shape[0]), tl.float32)
    total = tl.zeros(pixel.shape, tl.float32)
    for point in tl.static_range(4):
        source = rest + (image * 8 + point) * size + place
        x, y = tl.load(source, there, 0.0), tl.load(source + 4 * size, there, 0.0)
        weight = tl.load(count + (image * 4 + point) * size + place, there, 0.0)
        target += weight[:, None] * _hat(u - x[:, None]) * _hat(v - y[:, None])
        total += weight
    return target, total


@kernel("size")
def _entropy(
    scores,
    rest,
    count,
    sums,
    gradient,
    result,
    pixels,
    size,
    side: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels: their sum, or with a `gradient` that of their scores, (U·V, pixels)."""
    hypotheses: tl.constexpr = triton.next_power_of_2(side * side)
    pixel, index = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, hypotheses)
    there, known = pixel < pixels, (index < side * side)[None, :]
    mask = there[:, None] & known
    place = pixel[:, None] + index[None, :] * pixels
    value = tl.load(scores + place, mask, 0.0).to(tl.float32)
    value, power = exponentials(value, known)
    target, total = _targets(rest, count, pixel, there, index, size, side)
    if gradient is None:
        # targets add up to the weights: what was subtracted from the scores cancels
        entropy = total * tl.log(tl.sum(power, 1)) - tl.sum(tl.where(known, target * value, 0.0), 1)
        tl.store(sums + tl.program_id(0), tl.sum(entropy))
    else:
        slope = power * (total / tl.sum(power, 1))[:, None] - target
        slope = (slope * tl.load(gradient)).to(result.dtype.element_ty)
        tl.store(result + place, slope, mask)


class _EntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, rest: Tensor, count: Tensor) -> Tensor:
        rows = max(_SCORES // triton.next_power_of_2(len(scores)), 1)
        pixels, size = scores.shape[1], rest.shape[-2] * rest.shape[-1]
        ctx.grid, ctx.known = (triton.cdiv(pixels, rows),), (pixels, size)
        ctx.shape = {"side": isqrt(len(scores)), "rows": rows}
        sums = scores.new_empty(ctx.grid, dtype=torch.float32)
        _entropy[ctx.grid](scores, rest, count, sums, None, None, *ctx.known, **ctx.shape)
        ctx.save_for_backward(scores, rest, count)
        return sums.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        maps, result = ctx.saved_tensors, torch.empty_like(ctx.saved_tensors[0])
        _entropy[ctx.grid](*maps, None, gradient, result, *ctx.known, **ctx.shape)
        return result, None, None


def entropy_sum(scores: Tensor, rest: Tensor, count: Tensor) -> Tensor:
    """The sum of `count` times cross-entropy of (B, U, V, H, W) scores, at four points per cell.

    `rest` is the remaining motion (B, 2, 4, H, W) in cells, nowhere beyond the largest
    displacement, `count` (B, 4, H, W) the weight; both have no gradient.
    """
    flat = scores.permute(1, 2, 0, 3, 4).reshape(scores.shape[1] * scores.shape[2], -1)
    return _EntropySum.apply(flat.contiguous(), rest.contiguous(), count.contiguous())


@triton.jit
def _first(patch, patches, pixels):
    """The first pixel of a patch; one after the last patch, the number of pixels."""
    start = (patch * tl.maximum(pixels - 1, 1) + patches - 1) // patches
    return tl.where(patch < patches, start, pixels)


@triton.jit
def _corners(source, known, right, down, scale):
    """The vectors of four cells along one axis, in pixels of full size."""
    top_left, top_right = tl.load(source, known, 0.0), tl.load(source + right, known, 0.0)
    source += down
    left, far = tl.load(source, known, 0.0), tl.load(source + right, known, 0.0)
    return top_left * scale, top_right * scale, left * scale, far * scale


@triton.jit
def _interpolate(share, corners):
    """The value that four corners have a share of."""
    top = share[0] * corners[0] + share[1] * corners[1]
    return top + share[2] * corners[2] + share[3] * corners[3]


@triton.jit
def _distribute(total, share, value):
    """What four corners have got so far, and their share of a value."""
    left, right = total[0] + share[0] * value, total[1] + share[1] * value
    return left, right, total[2] + share[2] * value, total[3] + share[3] * value


@triton.jit
def _penalty(error_x, error_y, counted, exponent: tl.constexpr, smooth: tl.constexpr):
    """Of an error: its length, or that to a power, and the slope along it where it counts."""
    error = tl.sqrt(error_x * error_x + error_y * error_y)
    slope = counted / tl.where(error == 0, 1.0, error)
    if exponent < 1:
        power = tl.exp2(exponent * tl.log2(error + smooth))
        slope *= exponent * power / (error + smooth)
        error = power
    return error, slope


@kernel("height width cells_down cells_across")
def _errors(
    flow,
    truth,
    rest,
    valid,
    sums,
    parts,
    height,
    width,
    cells_down,
    cells_across,
    weight,
    reach,
    scale_x,
    scale_y,
    started: tl.constexpr,
    exponent: tl.constexpr,
    smooth: tl.constexpr,
    patches: tl.constexpr,
    pixels: tl.constexpr,
):
    """Patches next to each other; `parts` is (B, corners, 2, rows, columns of patches)."""
    row, image = tl.program_id(1), tl.program_id(2)
    rows, columns = tl.maximum(cells_down - 1, 1), tl.maximum(cells_across - 1, 1)
    column = (tl.program_id(0) * patches + tl.arange(0, patches))[:, None]
    known = column < columns
    top, left = _first(row, rows, height), _first(column, columns, width)
    across = _first(column + 1, columns, width) - left
    area = tl.where(known, (_first(row + 1, rows, height) - top) * across, 0)
    across = tl.maximum(across, 1)

    cells, size = cells_down * cells_across, height * width
    right, down = tl.where(cells_across > 1, 1, 0), tl.where(cells_down > 1, cells_across, 0)
    source = flow + image * 2 * cells + row * cells_across + column
    corners_x = _corners(source, known, right, down, scale_x)
    corners_y = _corners(source + cells, known, right, down, scale_y)

    total = tl.zeros((patches, pixels), tl.float32)
    gradient_x, gradient_y = (total,) * 4, (total,) * 4
    for begin in range(0, tl.max(area), pixels):
        pixel = begin + tl.arange(0, pixels)[None, :]
        there = pixel < area
        line, shift = top + pixel // across, left + pixel % across
        # of integers, so that weights are exact
        low = (line * (cells_down - 1) - row * (height - 1)) / tl.maximum(height - 1, 1)
        far = (shift * (cells_across - 1) - column * (width - 1)) / tl.maximum(width - 1, 1)
        share = ((1 - low) * (1 - far), (1 - low) * far, low * (1 - far), low * far)

        target = image * 2 * size + line * width + shift
        x, y = tl.load(truth + target, there, 0.0), tl.load(truth + target + size, there, 0.0)
        error_x = _interpolate(share, corners_x) - x
        error_y = _interpolate(share, corners_y) - y
        if started:
            x = tl.load(rest + target, there, 0.0)
            y = tl.load(rest + target + size, there, 0.0)
        counts = tl.load(valid + image * size + line * width + shift, there, 0) != 0
        counts &= (tl.abs(x) <= reach) & (tl.abs(y) <= reach)
        counted = counts.to(tl.float32)

        error, slope = _penalty(error_x, error_y, counted, exponent, smooth)
        total += counted * error
        gradient_x = _distribute(gradient_x, share, error_x * slope)
        gradient_y = _distribute(gradient_y, share, error_y * slope)

    program = (image * tl.num_programs(1) + row) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + program, weight * tl.sum(total))
    target = parts + (image * 8 * rows + row) * columns + column
    step = rows * columns
    for corner in tl.static_range(4):
        tl.store(target, tl.sum(gradient_x[corner], 1, keep_dims=True), known)
        tl.store(target + step, tl.sum(gradient_y[corner], 1, keep_dims=True), known)
        target += 2 * step


@kernel("total cells_down cells_across")
def _gradients(
    parts, gradient, result, total, cells_down, cells_across, scale_x, scale_y, cells: tl.constexpr
):
    """A run of the (B, 2, h, w) gradient."""
    cell = tl.program_id(0) * cells + tl.arange(0, cells)
    row, column = cell // cells_across % cells_down, cell % cells_across
    item = cell // (cells_down * cells_across)
    image, axis = item // 2, item % 2
    rows, columns = tl.maximum(cells_down - 1, 1), tl.maximum(cells_across - 1, 1)
    value = tl.zeros((cells,), tl.float32)
    for corner in tl.static_range(4):
        up, left = row - corner // 2, column - corner % 2
        there = (up >= 0) & (up < rows) & (left >= 0) & (left < columns) & (cell < total)
        source = ((image * 8 + corner * 2 + axis) * rows + up) * columns + left
        value += tl.load(parts + source, there, 0.0)
    value *= tl.where(axis == 0, scale_x, scale_y) * tl.load(gradient)
    tl.store(result + cell, value, cell < total)


class _ErrorSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        flow: Tensor,
        maps: tuple[Tensor, Tensor, Tensor],
        weight: float,
        reach: float,
        power: tuple[float, float],
    ) -> Tensor:
        truth, rest, _ = maps
        (batch, _, height, width), (down, across) = truth.shape, flow.shape[-2:]
        rows, columns = max(down - 1, 1), max(across - 1, 1)
        scale = (width / across, height / down)
        # a quarter of a patch at a time: larger ones are seldom a multiple of that
        pixels = triton.next_power_of_2(int(scale[0] * scale[1]) // 4)
        pixels = min(max(pixels, _FEWEST), _TILE)
        grid = (triton.cdiv(columns, _TILE // pixels), rows, batch)
        sums, parts = truth.new_empty(grid), truth.new_empty((batch, 8, rows, columns))
        sizes = (height, width, down, across)
        known = {"weight": weight, "reach": reach, "scale_x": scale[0], "scale_y": scale[1]}
        known |= {"exponent": power[0], "smooth": power[1], "started": rest is not truth}
        shape = {"patches": _TILE // pixels, "pixels": pixels}
        _errors[grid](flow, *maps, sums, parts, *sizes, **known, **shape)
        ctx.save_for_backward(parts)
        ctx.shape, ctx.scale = flow.shape, [weight * side for side in scale]
        return sums.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (parts,) = ctx.saved_tensors
        result = parts.new_empty(ctx.shape)
        size = (result.numel(), *ctx.shape[-2:])
        _gradients[(triton.cdiv(size[0], _CELLS),)](
            parts, gradient, result, *size, *ctx.scale, cells=_CELLS
        )
        return result, None, None, None, None


def error_sum(
    flow: Tensor,
    maps: tuple[Tensor, Tensor, Tensor],
    reach: float,
    weight: float,
    power: tuple[float, float],
) -> Tensor:
    """As `training.loss.error_sum`, of (B, 2, h, w) flow and (B, 2, H, W) maps, float32."""
    truth, rest, valid = (tensor.contiguous() for tensor in maps)
    known = (truth, rest, valid.view(torch.int8))
    return _ErrorSum.apply(flow.contiguous(), known, weight, float(reach), power)
