"""The stem: the first convolution of the feature net, which sees the images.

It is a 3x3 convolution of three channels with bias and ReLU. A reduced precision would cut bits
off the images, and all that follows would be computed from rounded frames. So the image is split,
x = rounded + remainder, and both parts are convolved with the same weights:

    conv(x) = conv(rounded) + conv(remainder)

- On a CPU (`cpu.ImageConv`), they are channels of one convolution, with the weights twice.
- On CUDA, one kernel loads a pixel once and multiplies both parts; another one normalises, pads and
  joins the frames before.
- In training, the image is rounded as autocast would; only the weight has a gradient. cuDNN's
  kernels for three channels take many times as long as writing the result.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..models.blocks import ConvBlock
from .cpu import ImageConv
from .folded import fold
from .kernels import autocast_dtype, check, in_rows, kernel, new_map, product_side, tl, triton

_RUN = tl.constexpr(1024)  # pixels of a program that normalises
_INFERRED = tl.constexpr(128)  # pixels of a program that convolves without a gradient
_BLOCK = 256  # pixels of a tile in training, in one row
_TAPS = tl.constexpr(32)  # 27, and idle ones
_PROGRAMS = 396  # that add up gradients: three for each multiprocessor of a large GPU


@kernel("planes height width new_height new_width")
def _normalized(
    first, second, result, planes, height, width, new_height, new_width, white: tl.constexpr
):
    """A run of pixels in one plane of the result."""
    plane = tl.program_id(1)
    place = tl.program_id(0) * _RUN + tl.arange(0, _RUN)
    there = place < new_height * new_width
    y, x = place // new_width, place % new_width
    source = (
        tl.where(plane < planes, first, second) + (plane % planes).to(tl.int64) * height * width
    )
    source += tl.minimum(y, height - 1) * width + tl.minimum(x, width - 1)
    value = (tl.load(source, there, 0.0) - 0.5) * 2.0
    value = tl.minimum(tl.maximum(value, -1.0), 1.0)
    if white:
        value = tl.where((y < height) & (x < width), value, 1.0)
    target = result + plane.to(tl.int64) * new_height * new_width + place
    tl.store(target, value, there)


def normalized(images: Sequence[Tensor], size: tuple[int, int], *, white: bool) -> Tensor:
    """One or two (B, 3, H, W) in [0, 1] -> all of them in [-1, 1], padded to `size`.

    The padding, at the right and the bottom, repeats the border or is `white`.
    """
    batch, channels, height, width = images[0].shape
    result = images[0].new_empty((len(images) * batch, channels, *size), dtype=torch.float32)
    frames = [image.float().contiguous() for image in images]
    grid = (triton.cdiv(size[0] * size[1], _RUN.value), len(result) * channels)
    sizes = (batch * channels, height, width, *size)
    _normalized[grid](frames[0], frames[-1], result, *sizes, white=white)
    return result


@triton.jit
def seen(image, row, x, tap, height, width):
    """What the taps see from the pixels `x` of a row of all images; zero outside, idle taps too."""
    number, tap_y, tap_x = row // height, row % height + tap % 9 // 3 - 1, x + (tap % 3 - 1)
    inside = (tap < 27) & (tap_y >= 0) & (tap_y < height) & (tap_x >= 0) & (tap_x < width)
    source = ((number * 3 + tap // 9).to(tl.int64) * height + tap_y) * width
    return tl.load(image + source + tap_x, inside, 0.0)


@kernel("height width")
def _image_layer(image, taps, bias, result, height, width, channels: tl.constexpr):
    """A run of pixels in one row; the rounding error of the image is convolved, too."""
    columns: tl.constexpr = triton.next_power_of_2(channels)
    blocks = tl.cdiv(width, _INFERRED)
    row, place = tl.program_id(0) // blocks, tl.program_id(0) % blocks * _INFERRED
    x, tap = place + tl.arange(0, _INFERRED), tl.arange(0, _TAPS)
    # taps first: neighbouring threads load neighbouring pixels
    value = seen(image, row, x[None, :], tap[:, None], height, width)
    column = tl.arange(0, columns)
    known = column < channels
    weight = taps + tap[None, :] * channels + column[:, None]
    weight = tl.load(weight, (tap < 27)[None, :] & known[:, None], 0.0)
    rounded = value.to(weight.dtype)
    remainder = (value - rounded.to(tl.float32)).to(weight.dtype)
    total = tl.dot(weight, rounded, input_precision="ieee")
    total = tl.dot(weight, remainder, total, input_precision="ieee")
    total = tl.maximum(total + tl.load(bias + column, known, 0.0)[:, None], 0.0)
    total = tl.trans(total.to(result.dtype.element_ty))
    target = result + (row.to(tl.int64) * width + x)[:, None] * channels + column[None, :]
    tl.store(target, total, (x < width)[:, None] & known[None, :])


def image_layer(image: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """(B, 3, H, W) float32 -> (B, out, H, W), channels last; `taps` are (27, out)."""
    batch, _, height, width = image.shape
    result = new_map((batch, len(bias), height, width), taps)
    _image_layer[(batch * height * triton.cdiv(width, _INFERRED.value),)](
        image.contiguous(), taps, bias, result, height, width, channels=len(bias)
    )
    return result


class KernelImageConv(ImageConv):
    """An `ImageConv` as one kernel."""

    def __init__(self, block: ConvBlock, dtype: torch.dtype) -> None:
        super().__init__(block, dtype)
        weight, _ = fold(block)
        self.taps = nn.Buffer(weight.permute(1, 2, 3, 0).flatten(0, 2).to(dtype).contiguous())

    def forward(self, x: Tensor, less: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W)."""
        return image_layer(x, self.taps, self.bias)


@kernel("height width")
def _forward(image, taps, result, height, width, channels: tl.constexpr, block: tl.constexpr):
    """One tile."""
    columns: tl.constexpr = product_side(channels)
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
    block: tl.constexpr,
):
    """Every `num_programs`-th tile; `partial` is (P, taps, channels)."""
    columns: tl.constexpr = product_side(channels)
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
            image, taps, result, height, width, channels=len(weight), block=_BLOCK
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
        maps, size = (image, gradient, partial), (batch * height, height, width, stride)
        _weight_gradient[(programs,)](*maps, *size, channels=channels, block=_BLOCK)
        weight = partial.sum(0)[:27].unflatten(0, (3, 3, 3)).permute(3, 0, 1, 2)
        return None, weight, None


class ImageConv2d(nn.Conv2d):
    """A 3x3 convolution of images, without bias, at their size, as two kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W), channels last, in the precision of autocast or `x`."""
        if x.requires_grad:  # the kernels give none of the images
            return super().forward(x)
        return _StemLayer.apply(x.contiguous(), self.weight, autocast_dtype(x))
