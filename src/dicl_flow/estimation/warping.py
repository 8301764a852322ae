"""Warping for users, with arrays or tensors."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..files import Array
from ..ops import warp as warp_tensor

ArrayOrTensor = TypeVar("ArrayOrTensor", Array, Tensor)


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
    image_tensor = torch.from_numpy(np.ascontiguousarray(channels)).double()
    flow_tensor = torch.from_numpy(np.ascontiguousarray(flow)).double()
    warped = warp(image_tensor.permute(2, 0, 1)[None], flow_tensor.permute(2, 0, 1)[None])
    result = warped[0].permute(1, 2, 0).numpy().reshape(image2.shape)
    if image2.dtype.kind in "ui":
        result = np.rint(result)
    return result.astype(image2.dtype)


def _check(image_size: tuple[int, ...], flow_size: tuple[int, ...], components: int) -> None:
    if components != 2:
        raise InputError(f"a flow has 2 components, got {components}")
    if tuple(image_size) != tuple(flow_size):
        raise InputError(
            f"image and flow must have one size, got {tuple(image_size)} and {tuple(flow_size)}"
        )
