"""The context net: a correction of the flow from flow, entropy, features and image.

    refined = flow + scale · layers(cat([flow, entropy, features, image]))

`scale` is a power of two, so it is folded into the last layer without rounding. A reduced precision
would cut bits off the flow. What it cuts off follows as two more channels, with the same weights:
conv(flow) = conv(rounded) + conv(remainder), as in the stem.

On a CPU (`cpu.FoldedContext`), torch joins the input; oneDNN adds bias and ReLU. On CUDA, here, one
kernel writes the input, another adds flow, correction and its bias. In training, the plain net is
used.
"""

import torch
from torch import Tensor, nn

from ..models.blocks import ContextNet
from .cpu import FoldedContext
from .folded import FoldedConv, is_reduced
from .kernels import check, kernel, new_map, tl, triton

_ROWS, _ROWS_OF_SUM = tl.constexpr(64), tl.constexpr(256)  # pixels of a program


@kernel("size num_rows")
def _context_input(flow, entropy, features, image, result, size, num_rows, depth: tl.constexpr):
    """A run of pixels: flow, entropy, features, image, and the rounding error of the flow."""
    width: tl.constexpr = depth + 8
    columns: tl.constexpr = triton.next_power_of_2(width)
    pixel = (tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)).to(tl.int64)[:, None]
    there = pixel < num_rows
    number, place = pixel // size, pixel % size
    column = tl.arange(0, columns)[None, :]
    lost = column >= depth + 6
    axis = tl.where(lost, column - depth - 6, column)
    moves = there & (axis < 2) & (column < width)
    value = tl.load(flow + (number * 2 + axis) * size + place, moves, 0.0)
    rounded = value.to(result.dtype.element_ty)
    value = tl.where(lost, value - rounded.to(tl.float32), value)
    value += tl.load(entropy + pixel + column * 0, there & (column == 2), 0.0)
    colour = column - depth - 3
    coloured = there & (colour >= 0) & (colour < 3)
    value += tl.load(image + (number * 3 + colour) * size + place, coloured, 0.0)
    described = there & (column >= 3) & (column < depth + 3)
    value += tl.load(features + pixel * depth + column - 3, described, 0.0)
    target = result + pixel * width + column
    tl.store(target, value.to(result.dtype.element_ty), there & (column < width))


def context_input(flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
    """(B, 2|1|C|3, H, W) -> (B, 2 + 1 + C + 3 + 2, H, W) as `features`, channels last."""
    check(features)
    batch, depth, height, width = features.shape
    result = new_map((batch, depth + 8, height, width), features)
    num_rows = batch * height * width
    maps = (flow.contiguous(), entropy.contiguous(), features, image.contiguous(), result)
    grid = (triton.cdiv(num_rows, _ROWS.value),)
    _context_input[grid](*maps, height * width, num_rows, depth=depth)
    return result


@kernel("size num_rows")
def _refine(flow, correction, bias, result, size, num_rows):
    """A run of pixels; the correction is channels last, the flow is not."""
    pixel = tl.program_id(0) * _ROWS_OF_SUM + tl.arange(0, _ROWS_OF_SUM)
    there = pixel < num_rows
    target = pixel // size * 2 * size + pixel % size
    for axis in tl.static_range(2):
        value = tl.load(correction + pixel * 2 + axis, there, 0.0).to(tl.float32)
        value += tl.load(flow + target + axis * size, there, 0.0) + tl.load(bias + axis)
        tl.store(result + target + axis * size, value, there)


def refine(flow: Tensor, correction: Tensor, bias: Tensor) -> Tensor:
    """Add (B, 2, H, W) float32, (B, 2, H, W) channels last, and (2,)."""
    check(correction)
    height, width = flow.shape[-2:]
    result, num_rows = torch.empty_like(flow), len(flow) * height * width
    grid = (triton.cdiv(num_rows, _ROWS_OF_SUM.value),)
    _refine[grid](flow, correction, bias, result, height * width, num_rows)
    return result


class KernelContext(FoldedContext):
    """A `FoldedContext` whose input is put together by one kernel, and its output by another."""

    def __init__(self, context: ContextNet, dtype: torch.dtype) -> None:
        super().__init__(context, dtype)
        last = self.layers[-1]
        assert isinstance(last, FoldedConv)
        self.bias = nn.Buffer(last.bias)
        last.bias = nn.Buffer(torch.zeros_like(last.bias))
        last.has_bias = False

    def refine(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """`flow` and its correction, (B, 2, H, W); all have this size."""
        correction = self.layers(self._input(flow, entropy, features, image))
        return refine(flow, correction, self.bias)

    def _input(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        if not is_reduced(self.dtype):
            return super()._input(flow, entropy, features, image)
        return context_input(flow, entropy, features.to(self.dtype), image)
