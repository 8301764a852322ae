"""Sampling frame 2 where a flow leads (warping), or moved by every displacement (windows)."""

import torch
import torch.nn.functional as F
from torch import Tensor

INSIDE = 0.9999  # bilinear weight below which a sample counts as partly outside


def warp(features: Tensor, flow: Tensor) -> Tensor:
    """Sample (B, C, H, W) at p + flow(p); zero where the sample is partly outside.

    `flow` is (B, 2, H, W), x first, in pixels. Coordinates and weights are computed in
    the flow's precision, the result has the precision of `features`.
    """
    warped, inside = warp_with_mask(features, flow)
    return warped * inside


def warp_with_mask(features: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Sample like `warp`, unmasked; also the (B, 1, H, W) bool mask of samples fully inside."""
    grid = sampling_grid(flow)
    dtype = torch.promote_types(features.dtype, flow.dtype)
    warped = _sample(features.to(dtype), grid.to(dtype)).to(features.dtype)
    inside = _sample(torch.ones_like(flow[:, :1]), grid) >= INSIDE
    return warped, inside


def warp_strictly_inside(features: Tensor, flow: Tensor) -> Tensor:
    """Sample like `warp`; zero where the sample is on the border of the image or outside."""
    grid = sampling_grid(flow)
    dtype = torch.promote_types(features.dtype, flow.dtype)
    warped = _sample(features.to(dtype), grid.to(dtype)).to(features.dtype)
    return warped * (grid.abs() < 1).all(-1)[:, None]


def sampling_grid(flow: Tensor) -> Tensor:
    """(B, 2, H, W) flow in pixels -> (B, H, W, 2) positions, with -1 and 1 at pixel centres."""
    height, width = flow.shape[-2:]
    x = torch.arange(width, dtype=flow.dtype, device=flow.device)
    y = torch.arange(height, dtype=flow.dtype, device=flow.device)[:, None]
    grid_x = 2 * (x + flow[:, 0]) / max(width - 1, 1) - 1
    grid_y = 2 * (y + flow[:, 1]) / max(height - 1, 1) - 1
    return torch.stack([grid_x, grid_y], -1)


def sample_clamped(values: Tensor, grid: Tensor) -> Tensor:
    """Sample (B, C, H, W) at a (B, h, w, 2) grid of `sampling_grid`; outside, at the nearest edge.

    `padding_mode="border"` does the same, but not on MPS, which lacks it.
    """
    return _sample(values, grid.clamp(-1, 1))


def _sample(values: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(values, grid, mode="bilinear", padding_mode="zeros", align_corners=True)


def displacement_windows(features: Tensor, radius: int) -> Tensor:
    """View (B, C, H, W) as (B, C, U, V, H, W): entry [u, v] is `features` moved by (u-r, v-r).

    U is horizontal, V vertical; moved by d means that pixel p shows p + d. Zero outside the image,
    even if it is smaller than the window. The result is a view of one padded copy.
    """
    height, width = features.shape[-2:]
    padded = F.pad(features, [radius] * 4)
    if torch.compiler.is_exporting():  # unfold would fix this height and width in the file
        shifts = range(2 * radius + 1)
        rows = torch.stack([padded[..., v : v + height, :] for v in shifts], 2)
        return torch.stack([rows[..., u : u + width] for u in shifts], 2)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, V, U, H, W)
    return windows.transpose(2, 3)
