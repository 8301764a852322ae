"""The stem as one kernel, and the frames as the network takes them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...models.blocks import ConvBlock
from ..folded import fold
from ..kernels import kernel, new_map, tl, triton
from .cpu import ImageConv

_RUN = 1024  # pixels of a program that normalises
_BLOCK, _TAPS = 128, 32  # pixels of a program; 27 taps, padded


@kernel("planes height width new_height new_width")
def _normalized(
    first,
    second,
    result,
    planes,
    height,
    width,
    new_height,
    new_width,
    white: tl.constexpr,
    block: tl.constexpr,
):
    """A run of pixels in one plane of the result."""
    plane = tl.program_id(1)
    place = tl.program_id(0) * block + tl.arange(0, block)
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
    _normalized[(triton.cdiv(size[0] * size[1], _RUN), len(result) * channels)](
        frames[0],
        frames[-1],
        result,
        batch * channels,
        height,
        width,
        *size,
        white=white,
        block=_RUN,
    )
    return result


@triton.jit
def seen(image, row, x, tap, height, width):
    """What the taps see from the pixels `x` of a row of all images; zero outside, idle taps too."""
    number, tap_y, tap_x = row // height, row % height + tap % 9 // 3 - 1, x + (tap % 3 - 1)
    inside = (tap < 27) & (tap_y >= 0) & (tap_y < height) & (tap_x >= 0) & (tap_x < width)
    source = ((number * 3 + tap // 9).to(tl.int64) * height + tap_y) * width
    return tl.load(image + source + tap_x, inside, 0.0)


@kernel("height width")
def _image_layer(
    image,
    taps,
    bias,
    result,
    height,
    width,
    channels: tl.constexpr,
    columns: tl.constexpr,
    num_taps: tl.constexpr,
    block: tl.constexpr,
):
    """A run of pixels in one row; the rounding error of the image is convolved, too."""
    blocks = tl.cdiv(width, block)
    row, place = tl.program_id(0) // blocks, tl.program_id(0) % blocks * block
    x, tap = place + tl.arange(0, block), tl.arange(0, num_taps)
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
    channels = len(bias)
    result = new_map((batch, channels, height, width), taps)
    _image_layer[(batch * height * triton.cdiv(width, _BLOCK),)](
        image.contiguous(),
        taps,
        bias,
        result,
        height,
        width,
        channels=channels,
        columns=triton.next_power_of_2(channels),
        num_taps=_TAPS,
        block=_BLOCK,
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
