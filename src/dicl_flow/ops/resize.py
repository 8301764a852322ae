"""Resizing with aligned corners."""

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


def resize(tensor: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear resize of (B, C, H, W) to `size` (height, width); corners are aligned."""
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=True)


def resize_by_matrices(tensor: Tensor, size: tuple[int, int], *, corners: bool = True) -> Tensor:
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
    size: tuple[int, int],
    resize: Callable[[Tensor, tuple[int, int]], Tensor] = resize,
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
