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
    number, y = row // height, row % height
    x, tap = place + tl.arange(0, block), tl.arange(0, num_taps)
    tap_y, tap_x = y + tap % 9 // 3 - 1, x[None, :] + (tap % 3 - 1)[:, None]
    inside = ((tap < 27) & (tap_y >= 0) & (tap_y < height))[:, None] & (tap_x >= 0)
    source = ((number * 3 + tap // 9).to(tl.int64) * height + tap_y) * width
    # taps first: neighbouring threads load neighbouring pixels
    value = tl.load(image + source[:, None] + tap_x, inside & (tap_x < width), 0.0)
    column = tl.arange(0, columns)
    known = column < channels
    weight = tl.load(
        taps + tap[None, :] * channels + column[:, None], (tap < 27)[None, :] & known[:, None], 0.0
    )
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
