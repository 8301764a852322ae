"""How far each channel of two images extends, and how far they differ, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import torch
import triton.language as tl
from torch import Tensor

from .launching import kernel

PARTS = 64  # programs for each channel of a pair
_BLOCK, _WARPS = 2048, 8


@kernel(do_not_specialize=["height", "width", "row_stride", "plane"])
def _extremes(
    image1,
    image2,
    result,
    height,
    width,
    row_stride,
    plane,
    parts: tl.constexpr,
    block: tl.constexpr,
):
    """Every `parts`-th block of one channel of a pair."""
    part, channel = tl.program_id(0), tl.program_id(1)
    start = channel.to(tl.int64) * plane
    high1 = tl.full((block,), float("-inf"), tl.float32)
    low1 = tl.full((block,), float("inf"), tl.float32)
    high2, low2, apart = high1, low1, tl.zeros((block,), tl.float32)
    for first in range(part * block, height * width, parts * block):
        place = first + tl.arange(0, block)
        # beyond the end the last pixel counts again, which changes nothing
        place = tl.minimum(place, height * width - 1)
        source = start + place // width * row_stride + place % width
        one, two = tl.load(image1 + source), tl.load(image2 + source)
        high1, low1 = tl.maximum(high1, one), tl.minimum(low1, one)
        high2, low2 = tl.maximum(high2, two), tl.minimum(low2, two)
        apart = tl.maximum(apart, tl.abs(one - two))
    target = result + channel * 5 * parts + part
    tl.store(target, tl.max(high1, 0))
    tl.store(target + parts, tl.min(low1, 0))
    tl.store(target + 2 * parts, tl.max(high2, 0))
    tl.store(target + 3 * parts, tl.min(low2, 0))
    tl.store(target + 4 * parts, tl.max(apart, 0))


def extremes(image1: Tensor, image2: Tensor, size: tuple[int, int]) -> Tensor:
    """Two (B, C, H, W) -> (B, C, 5, parts), of which the extremes over the parts are wanted.

    The five are highest and lowest of image 1, the same of image 2, and the largest difference;
    of the top left `size` (height, width) only.
    """
    batch, channels, height, width = image1.shape
    result = image1.new_empty((batch, channels, 5, PARTS))
    with torch.cuda.device_of(result):
        _extremes[(PARTS, batch * channels)](
            image1.contiguous(),
            image2.contiguous(),
            result,
            *size,
            width,
            height * width,
            parts=PARTS,
            block=_BLOCK,
            num_warps=_WARPS,
        )
    return result
