"""Pairs of frames seen by kernels, with the results of `View` and `shade`."""

import torch
import triton
from torch import Tensor

from .color_kernels import shade_pairs
from .ray_kernels import find_occluded, trace_pairs
from .shading import MipAtlas
from .world import Layout

_TILE_HEIGHT, _TILE_WIDTH, _WARPS = 8, 16, 4


class PairCaster:
    """Sees pairs of frames: the two times of a layout."""

    def __init__(
        self, layout: Layout, textures: MipAtlas, shapes: Tensor, size: tuple[int, int]
    ) -> None:
        self.layout, self.textures, self.shapes, self.size = layout, textures, shapes, size
        device, frames = layout.pose.device, 2 * layout.batch
        firsts = [textures.first(level) for level in range(textures.num_levels)]
        numbers = [layout.batch, layout.pose.shape[2], *size, shapes.shape[-1], *textures.size]
        numbers += [textures.num_textures, textures.num_levels, *firsts]
        self.sizes = torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)
        self.surface = torch.empty(frames, *size, dtype=torch.int16, device=device)
        self.distance = torch.empty(frames, *size, device=device)
        self.flow = torch.empty(frames, 2, *size, device=device)
        self.layer = torch.empty(frames, *size, dtype=torch.uint8, device=device)
        self._launch(trace_pairs, frames, self.surface, self.distance, self.flow, self.layer)

    def occluded(self) -> Tensor:
        """(B, H, W) bool."""
        result = torch.empty(
            self.layout.batch, *self.size, dtype=torch.int8, device=self.flow.device
        )
        self._launch(find_occluded, self.layout.batch, self.surface, self.distance, result)
        return result > 0

    def shade(self, fog: Tensor) -> tuple[Tensor, Tensor]:
        """(N, 3, H, W) colours and (N, 1, H, W) depth in [0, 1]."""
        frames, device = 2 * self.layout.batch, self.flow.device
        color = torch.empty(frames, 3, *self.size, device=device)
        depth = torch.empty(frames, 1, *self.size, device=device)
        texels = self.textures.texels
        seen = (self.surface, self.distance, fog.contiguous(), texels, color, depth)
        self._launch(shade_pairs, frames, *seen)
        return color, depth

    def _launch(self, kernel: "triton.JITFunction", frames: int, *arguments: Tensor) -> None:
        height, width = self.size
        tiles = triton.cdiv(height, _TILE_HEIGHT) * triton.cdiv(width, _TILE_WIDTH)
        layout = self.layout
        parts = (layout.pose, layout.skin, layout.scene, layout.count, self.shapes, self.sizes)
        with torch.cuda.device_of(self.distance):
            kernel[(tiles, frames)](
                *parts,
                *arguments,
                tile_width=_TILE_WIDTH,
                tile_height=_TILE_HEIGHT,
                num_warps=_WARPS,
            )
