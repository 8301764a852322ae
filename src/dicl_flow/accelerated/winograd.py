"""3x3 convolutions with fewer products: Winograd's F(6x6, 3x3) in NNPACK, for float32 on ARM.

It computes 6x6 pixels from 8x8, with 64 products instead of 324. Maps are in planes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import private
from .settings import has_winograd

_LEAST_PIXELS, _LEAST_CHANNELS = 512, 32  # below, oneDNN is as fast
_TILE, _NUMBERS = 6, 64  # the side of a tile of pixels, and numbers that represent it
_AT_ONCE = 16 << 20  # bytes of them: NNPACK keeps its memory, and a cache holds so much
_threads_of_nnpack: list[int] = []  # one number: those that torch had at NNPACK's first call


def in_callers_thread() -> bool:
    """Whether NNPACK computes in the thread that calls it, if torch has one thread there.

    It keeps as many as torch had at its first call, which work for one caller at a time.
    """
    return _threads_of_nnpack in ([], [1])


def is_worth_winograd(x: Tensor) -> bool:
    """Whether `convolve` is faster than oneDNN for (B, in, H, W)."""
    _, channels, height, width = x.shape
    large = channels >= _LEAST_CHANNELS and height * width >= _LEAST_PIXELS
    return large and has_winograd(x.device)


def convolve(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, *, relu: bool) -> Tensor:
    """(B, in, H, W) -> (B, out, H, W), padded by the dilation; weight and result are in planes."""
    height, width = x.shape[2:]
    images = []
    for image in x.split(1):
        if dilation == 1:
            images.append(_convolve_strips(image, weight, bias))
        else:
            phases = _convolve_strips(_split_phases(image, dilation), weight, bias)
            images.append(_join_phases(phases, dilation)[..., :height, :width])
    result = _joined(images, 0)
    return result.relu_() if relu else result


def _convolve_strips(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(1, in, H, W) -> (1, out, H, W), some rows at a time."""
    height, width = image.shape[2:]
    of_a_row = -(-width // _TILE) * _NUMBERS * sum(weight.shape[:2]) * image.element_size()
    step = _TILE * max(1, _AT_ONCE // of_a_row) - 2  # the rows around it are computed again
    strips = []
    for top in range(0, height, step):
        bottom = min(top + step, height)
        first, last = max(top - 1, 0), min(bottom + 1, height)
        strip = _planes(image[..., first:last, :])
        if not _threads_of_nnpack:
            _threads_of_nnpack.append(torch.get_num_threads())
        rows = private.nnpack_convolve(strip, weight, bias)
        strips.append(rows[..., top - first : bottom - first, :])
    return _joined(strips, 2)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _planes(image: Tensor) -> Tensor:
    """(1, C, H, W), channels last -> the same in planes: a transposed matrix is copied fastest."""
    if image.is_contiguous() or not image.is_contiguous(memory_format=torch.channels_last):
        return image.contiguous()
    pixels = image.permute(0, 2, 3, 1).flatten(0, 2)
    return pixels.t().contiguous().view(image.shape)


def _split_phases(image: Tensor, dilation: int) -> Tensor:
    """Put pixels that see each other side by side, and a zero between those that do not.

    (1, C, H, W) -> (1, C, d·(H/d + 1), d·(W/d + 1)), sides rounded up.
    """
    height, width = image.shape[2:]
    even = F.pad(image, (0, -width % dilation, 0, -height % dilation))
    parts = even.unflatten(3, (-1, dilation)).unflatten(2, (-1, dilation))
    phases = F.pad(parts.permute(0, 1, 3, 2, 5, 4), (0, 1, 0, 0, 0, 1))
    return phases.flatten(4, 5).flatten(2, 3)


def _join_phases(phases: Tensor, dilation: int) -> Tensor:
    """Undo `_split_phases`."""
    parts = phases.unflatten(3, (dilation, -1)).unflatten(2, (dilation, -1))
    return parts[..., :-1, :, :-1].permute(0, 1, 3, 2, 5, 4).flatten(4, 5).flatten(2, 3)
