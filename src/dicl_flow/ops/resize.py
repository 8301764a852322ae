import torch
import torch.nn.functional as F
from torch import Tensor


def resize(tensor: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear resize of (B, C, H, W) to `size` (height, width); corners stay corners."""
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=True)


def upsample_flow(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a flow to `size` and its vectors with it, so that they are pixels of that size."""
    x, y = resize(flow, size).unbind(1)
    return torch.stack([x * (size[1] / flow.shape[-1]), y * (size[0] / flow.shape[-2])], 1)
