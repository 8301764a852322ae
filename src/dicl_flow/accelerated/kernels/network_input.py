"""Frames as the network takes them: normalised, padded and one after the other, in one pass."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import kernel

_BLOCK, _WARPS = 1024, 4


@kernel(do_not_specialize=["planes", "height", "width", "new_height", "new_width"])
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
    given = [image.float().contiguous() for image in images]
    with torch.cuda.device_of(result):
        _normalized[(triton.cdiv(size[0] * size[1], _BLOCK), len(result) * channels)](
            given[0],
            given[-1],
            result,
            batch * channels,
            height,
            width,
            *size,
            white=white,
            block=_BLOCK,
            num_warps=_WARPS,
        )
    return result
