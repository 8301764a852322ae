"""A 3x3 convolution of images to channels-last features, with bias and ReLU, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel

_BLOCK, _TAPS, _WARPS = 128, 32, 4  # pixels of a program; 27 taps, padded


@triton.jit
def seen(image, row, x, tap, height, width):
    """What the taps see from the pixels `x` of a row of all images; zero outside, idle taps too."""
    number, tap_y, tap_x = row // height, row % height + tap % 9 // 3 - 1, x + (tap % 3 - 1)
    inside = (tap < 27) & (tap_y >= 0) & (tap_y < height) & (tap_x >= 0) & (tap_x < width)
    source = ((number * 3 + tap // 9).to(tl.int64) * height + tap_y) * width
    return tl.load(image + source + tap_x, inside, 0.0)


@kernel(do_not_specialize=["height", "width"])
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
    result = torch.empty(
        (batch, channels, height, width),
        dtype=taps.dtype,
        device=image.device,
        memory_format=torch.channels_last,
    )
    with torch.cuda.device_of(result):
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
            num_warps=_WARPS,
        )
    return result
