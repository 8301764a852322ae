"""The stem in training: a convolution of images, and the gradient of its weight.

cuDNN's kernels for three channels take many times as long as writing the result. Backward, only the
weight has a gradient: each program adds up that of its pixels, and these sums are added in order.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..kernels import autocast_dtype, check, in_rows, kernel, new_map, product_side, tl, triton
from .cuda import seen

_BLOCK = 256  # pixels of a tile, in one row
_TAPS = tl.constexpr(32)  # 27, and idle ones
_PROGRAMS = 396  # that add up gradients: three for each multiprocessor of a large GPU


@kernel("height width")
def _forward(
    image,
    taps,
    result,
    height,
    width,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
):
    """One tile."""
    blocks = tl.cdiv(width, block)
    row, x = tl.program_id(0) // blocks, tl.program_id(0) % blocks * block + tl.arange(0, block)
    tap, column = tl.arange(0, _TAPS), tl.arange(0, columns)[None, :]
    known = (tap < 27)[:, None] & (column < channels)
    weight = tl.load(taps + tap[:, None] * channels + column, known, 0.0)
    value = seen(image, row, x[:, None], tap[None, :], height, width).to(weight.dtype)
    value = tl.dot(value, weight, input_precision="ieee").to(weight.dtype)
    target = result + (row.to(tl.int64) * width + x)[:, None] * channels + column
    tl.store(target, value, (x < width)[:, None] & (column < channels))


@kernel("rows height width")
def _weight_gradient(
    image,
    gradient,
    partial,
    rows,
    height,
    width,
    stride,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
):
    """Every `num_programs`-th tile; `partial` is (P, taps, channels)."""
    program, num_programs, blocks = tl.program_id(0), tl.num_programs(0), tl.cdiv(width, block)
    tap, column = tl.arange(0, _TAPS), tl.arange(0, columns)[None, :]
    total = tl.zeros((_TAPS, columns), tl.float32)
    for tile in tl.range(program, rows * blocks, num_programs, num_stages=1):
        row, x = tile // blocks, tile % blocks * block + tl.arange(0, block)
        source = gradient + (row.to(tl.int64) * width + x)[:, None] * stride + column
        incoming = tl.load(source, (x < width)[:, None] & (column < channels), 0.0)
        value = seen(image, row, x[:, None], tap[None, :], height, width).to(incoming.dtype)
        total = tl.dot(tl.trans(value), incoming, total, input_precision="ieee")
    target = partial + (program * _TAPS + tap[:, None]) * channels + column
    tl.store(target, total, column < channels)


class _StemLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        batch, _, height, width = image.shape
        taps = weight.to(dtype).permute(1, 2, 3, 0).contiguous()  # (27, out)
        result = new_map((batch, len(weight), height, width), taps)
        check(result)
        _forward[(batch * height * triton.cdiv(width, _BLOCK),)](
            image, taps, result, height, width, **_shape(len(weight))
        )
        ctx.save_for_backward(image)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        (image,) = ctx.saved_tensors
        gradient, stride = in_rows(gradient)
        batch, channels, height, width = gradient.shape
        programs = min(batch * height * triton.cdiv(width, _BLOCK), _PROGRAMS)
        partial = image.new_empty((programs, _TAPS.value, channels), dtype=torch.float32)
        size = (batch * height, height, width, stride)
        _weight_gradient[(programs,)](image, gradient, partial, *size, **_shape(channels))
        weight = partial.sum(0)[:27].unflatten(0, (3, 3, 3)).permute(3, 0, 1, 2)
        return None, weight, None


def _shape(channels: int) -> dict[str, int]:
    return {"block": _BLOCK, "channels": channels, "columns": product_side(channels)}


def stem_layer(image: Tensor, weight: Tensor) -> Tensor:
    """(B, 3, H, W) without a gradient -> (B, out, H, W), channels last; `weight` is (out, 3, 3, 3).

    Its precision is that of autocast, or else of the image.
    """
    return _StemLayer.apply(image.contiguous(), weight, autocast_dtype(image))


class ImageConv2d(nn.Conv2d):
    """A 3x3 convolution of images, without bias, at their size, as two kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W), channels last."""
        if x.requires_grad:  # the kernels give none of the images
            return super().forward(x)
        return stem_layer(x, self.weight)
