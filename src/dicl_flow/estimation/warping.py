"""What a flow does to frames: `warp`, and `interpolate` for the frames between two frames."""

from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from ..files import Array
from ..ops import sample_clamped, sampling_grid, size_of, upsample_pixels
from ..ops import warp as warp_tensor
from .confidence import find_occlusion
from .inputs import to_torch

ArrayOrTensor = TypeVar("ArrayOrTensor", Array, Tensor)

_HIDDEN = 1e-3  # weight of an occluded pixel: used where there is nothing else
_NOTHING = 1e-6  # a pixel with less weight is a hole


def warp(image2: ArrayOrTensor, flow: ArrayOrTensor) -> ArrayOrTensor:
    """Sample frame 2 where the flow leads: it looks like frame 1 where the flow is right.

    Arrays: (H, W, C) or (H, W) and (H, W, 2). Tensors: (B, C, H, W) and (B, 2, H, W).
    The result has the type of `image2`; black where the flow is unknown or leads outside.
    """
    if isinstance(image2, np.ndarray):
        return _warp_array(image2, np.asarray(flow))
    _check(image2.shape[-2:], flow.shape[-2:], flow.shape[1])
    outside = 1e6  # beyond any image, but finite, so that sampling works
    return warp_tensor(image2, flow.nan_to_num(outside).clamp(-outside, outside))


def _warp_array(image2: Array, flow: Array) -> Array:
    _check(image2.shape[:2], flow.shape[:2], flow.shape[-1])
    channels = image2.reshape(*image2.shape[:2], -1)
    warped = warp(to_tensor(channels, torch.float64), to_tensor(flow, torch.float64))
    result = warped[0].permute(1, 2, 0).numpy().reshape(image2.shape)
    return (np.rint(result) if image2.dtype.kind in "ui" else result).astype(image2.dtype)


def _check(image_size: tuple[int, ...], flow_size: tuple[int, ...], components: int) -> None:
    if components != 2:
        raise InputError(f"a flow has 2 components, got {components}")
    if tuple(image_size) != tuple(flow_size):
        sizes = (f"{width}x{height}" for height, width in (image_size, flow_size))
        raise InputError(f"image and flow must have one size, got {' and '.join(sizes)}")


def interpolate(
    image1: Array, image2: Array, flow: Array, backward: Array, time: float = 0.5
) -> Array:
    """Return the frame at `time` between 0 (frame 1) and 1 (frame 2), for linear motion.

    Frames are (H, W, C), both uint8, both uint16, or both float with any values, and so is the
    result. Flows are (H, W, 2): `flow` from 1 to 2, `backward` from 2 to 1.
    """
    if not 0 <= time <= 1:
        raise InputError(f"the time must lie between 0 (frame 1) and 1 (frame 2), got {time:g}")
    if image1.shape != image2.shape or {flow.shape, backward.shape} != {(*image1.shape[:2], 2)}:
        raise InputError(
            f"frames and flows must have one size, got {image1.shape}, {image2.shape}, "
            f"{flow.shape} and {backward.shape}"
        )
    if image1.dtype != image2.dtype or image1.dtype not in (np.uint8, np.uint16, np.float32):
        kinds = "both float32, both uint8 or both uint16"
        raise InputError(f"frames must be {kinds}, got {image1.dtype} and {image2.dtype}")
    if not (np.isfinite(flow).all() and np.isfinite(backward).all()):
        raise InputError("the flow is unknown at some pixels; it must be a number at each")
    tensors = (to_tensor(array) for array in (image1, image2, flow, backward))
    return to_picture(interpolate_tensors(*tensors, time=time), image1.dtype)


def interpolate_tensors(
    image1: Tensor, image2: Tensor, flow: Tensor, backward: Tensor, *, time: float
) -> Tensor:
    """(B, C, H, W) frames and (B, 2, H, W) flows -> (B, C, H, W).

    The motion at `time` is splatted from both frames; each pixel then takes its colour from
    both ends of its path, or from the end at which it is visible.
    """
    hidden1, hidden2 = find_occlusion(flow, backward), find_occlusion(backward, flow)
    motion = _motion_between(flow, backward, hidden1, hidden2, time)
    color1, seen1, inside1 = _fetch(image1, ~hidden1, -time * motion)
    color2, seen2, inside2 = _fetch(image2, ~hidden2, (1 - time) * motion)
    # what is hidden in frame 2 comes from frame 1 only, and vice versa
    weight1 = (1 - time) * (seen2 + _HIDDEN) * (inside1 + _HIDDEN)
    weight2 = time * (seen1 + _HIDDEN) * (inside2 + _HIDDEN)
    return (weight1 * color1 + weight2 * color2) / (weight1 + weight2)


def _motion_between(
    flow: Tensor, backward: Tensor, hidden1: Tensor, hidden2: Tensor, time: float
) -> Tensor:
    """(B, 2, H, W): from frame 1 to frame 2, of what lies at each pixel at `time`."""
    total = torch.zeros_like(flow[:, :1]).expand(-1, 3, -1, -1)
    for motion, way, hidden, share in (
        (flow, time * flow, hidden1, 1 - time),
        (-backward, (1 - time) * backward, hidden2, time),
    ):
        weight = torch.where(hidden, _HIDDEN, 1.0) * (share + _HIDDEN)
        total = total + splat(torch.cat([motion * weight, weight], 1), way)
    return _fill(total[:, :2], total[:, 2:])


def splat(values: Tensor, flow: Tensor) -> Tensor:
    """Add (B, C, H, W) values to the four pixels around p + flow(p), with bilinear weights."""
    batch, channels, height, width = values.shape
    x = torch.arange(width, device=flow.device) + flow[:, 0]
    y = torch.arange(height, device=flow.device)[:, None] + flow[:, 1]
    total = values.new_zeros(batch, channels, height * width)
    for corner_x in (x.floor(), x.floor() + 1):
        for corner_y in (y.floor(), y.floor() + 1):
            inside = (corner_x >= 0) & (corner_x < width) & (corner_y >= 0) & (corner_y < height)
            weight = (1 - (x - corner_x).abs()) * (1 - (y - corner_y).abs()) * inside
            place = (corner_y * width + corner_x).where(inside, 0).long()
            share = (values * weight[:, None]).flatten(2)
            total.scatter_add_(2, place.flatten(1)[:, None].expand_as(share), share)
    return total.unflatten(2, (height, width))


def _fill(weighted: Tensor, weight: Tensor) -> Tensor:
    """Divide by the weight; fill holes from coarser and coarser averages."""
    known = weight > _NOTHING
    mean = weighted / weight.clamp(min=_NOTHING)
    if known.all() or min(weight.shape[-2:]) == 1:
        return mean.where(known, 0)
    pooled = F.avg_pool2d(torch.cat([mean * known, known.to(mean.dtype)], 1), 2, ceil_mode=True)
    around = upsample_pixels(_fill(pooled[:, :2], pooled[:, 2:]), size_of(weight))
    return mean.where(known, around)


def _fetch(image: Tensor, visible: Tensor, way: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Look up at p + way(p): colours, whether the other frame shows them, whether it is inside."""
    grid = sampling_grid(way)
    sampled = sample_clamped(torch.cat([image, visible.to(image.dtype)], 1), grid)
    inside = (grid.abs() <= 1).all(-1).unsqueeze(1)
    return sampled[:, :-1], sampled[:, -1:], inside.to(image.dtype)


def to_tensor(array: Array, dtype: torch.dtype = torch.float32) -> Tensor:
    """(H, W, C) -> (1, C, H, W)."""
    return to_torch(array).to(dtype).permute(2, 0, 1)[None]


def to_picture(image: Tensor, depth: np.dtype[Any]) -> Array:
    """(1, C, H, W), wherever it is -> (H, W, C): float32, or rounded to uint8 or uint16."""
    levels = image[0].permute(1, 2, 0)
    if depth.kind == "f":
        return levels.cpu().numpy()
    levels = levels.clamp(0, np.iinfo(depth).max)
    return np.rint(levels.cpu().numpy()).astype(depth)
