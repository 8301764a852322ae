"""Sizes: normalised images, padding and resizing, with pixels as areas or with aligned corners."""

from collections.abc import Callable
from functools import lru_cache
from math import prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]  # (height, width)
WHITE = 1.0  # in normalised units, see docs/conventions.md
_TOLERANCE = 1.25  # times `max_pixels` that a frame may have after rounding


def size_of(tensor: Tensor) -> Size:
    """(height, width) of (B, C, H, W)."""
    return tensor.shape[-2], tensor.shape[-1]


def normalize(images: Tensor) -> Tensor:
    """[0, 1] -> [-1, 1], what networks are trained on."""
    return ((images - 0.5) / 0.5).clamp(-1, 1)


def pad_to_multiple(images: Tensor, multiple: int, padding: str = "replicate") -> Tensor:
    """Pad (B, C, H, W) at the right and the bottom until both sides are multiples of `multiple`.

    `padding` is "replicate" (repeat the border) or "white" (as the authors' KITTI weights
    expect).
    """
    size = size_of(images)
    height, width = size_in_multiples(size, multiple)
    right, bottom = width - size[1], height - size[0]
    if padding == "white":
        return F.pad(images, (0, right, 0, bottom), value=WHITE)
    return F.pad(images, (0, right, 0, bottom), mode="replicate")


def crop(images: Tensor, size: Size) -> Tensor:
    """Undo `pad_to_multiple`: keep the top left (height, width)."""
    return images[..., : size[0], : size[1]]


def size_in_multiples(size: Size, multiple: int, max_pixels: int = 0) -> Size:
    """The next larger multiples of (height, width), or near ones with about `max_pixels`.

    At most a quarter more than `max_pixels`, unless both sides are a single multiple.
    """
    # no ceil, no negative dividend: this is exported as it is, and ONNX rounds towards zero
    height, width = ((side + multiple - 1) // multiple * multiple for side in size)
    if not max_pixels or height * width <= max_pixels:
        return height, width
    scale = min(1.0, sqrt(max_pixels / (size[0] * size[1])))  # nothing is enlarged
    wanted = [side * scale / multiple for side in size]
    counts = [max(round(count), 1) for count in wanted]
    while prod(counts) * multiple**2 > _TOLERANCE * max_pixels and counts != [1, 1]:
        most_stretched = max((0, 1), key=lambda i: (counts[i] > 1, counts[i] / wanted[i]))
        counts[most_stretched] -= 1
    return counts[0] * multiple, counts[1] * multiple


def resize_pixels(images: Tensor, size: Size, mode: str = "bilinear") -> Tensor:
    """Resize images: pixels are areas, and reducing averages.

    `mode` is "bilinear" or "bicubic", which is sharper and can exceed the range of values.
    """
    return F.interpolate(images, size=size, mode=mode, align_corners=False, antialias=True)


def upsample_pixels(tensor: Tensor, size: Size) -> Tensor:
    """Enlarge (B, C, H, W) where pixels are areas: corners are not aligned."""
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=False)


def resize_flow_pixels(flow: Tensor, size: Size) -> Tensor:
    """Resize a flow where pixels are areas, and scale its vectors."""
    x, y = upsample_pixels(flow, size).unbind(1)
    return torch.stack([x * (size[1] / flow.shape[-1]), y * (size[0] / flow.shape[-2])], 1)


def resize(tensor: Tensor, size: Size) -> Tensor:
    """Bilinear resize of (B, C, H, W) to `size` (height, width); corners are aligned."""
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=True)


def resize_by_matrices(tensor: Tensor, size: Size, *, corners: bool = True) -> Tensor:
    """The same as `resize`, as two matrix products, never below float32.

    Without `corners` the same as `upsample_pixels`: pixels are areas. On GPUs the gradient of a
    large upsampling is several times faster this way. The products are float32: torch uses TF32
    for them only on request, and autocast is off here.
    """
    with torch.autocast(tensor.device.type, enabled=False):
        tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        rows, columns = (
            _hats(old, new, corners, tensor.dtype, tensor.device)
            for old, new in zip(tensor.shape[-2:], size, strict=True)
        )
        return rows @ (tensor @ columns.T)


def upsample_flow(
    flow: Tensor,
    size: Size,
    resize: Callable[[Tensor, Size], Tensor] = resize,
) -> Tensor:
    """Resize a flow to `size` and scale its vectors to pixels of that size."""
    x, y = flow.unbind(1)
    scaled = torch.stack([x * (size[1] / flow.shape[-1]), y * (size[0] / flow.shape[-2])], 1)
    return resize(scaled, size)


@lru_cache(maxsize=64)  # training needs two for each level, in every step
@torch.inference_mode(mode=False)  # gradients could not use inference tensors
def _hats(old: int, new: int, corners: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(new, old) weights of linear interpolation between `old` samples at `new` positions."""
    position = torch.linspace(0, old - 1, new, dtype=torch.float64, device=device)
    if not corners:
        centers = torch.arange(new, dtype=torch.float64, device=device) + 0.5
        position = (centers * (old / new) - 0.5).clamp(0, old - 1)
    sample = torch.arange(old, dtype=torch.float64, device=device)
    return (1 - (position[:, None] - sample).abs()).clamp(min=0).to(dtype)
