"""VCN's features: down by residual blocks, pooled over the whole frame, up again."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import upsample_pixels
from .blocks import SLOPE, LeakyBlock

_DOWN = {4: 32, 8: 64, 16: 128, 32: 128, 64: 128}  # channels at each stride, going down
_UP = {4: 64, 8: 64, 16: 128, 32: 128}  # and going up
_CARRIED = {4: 32, 8: 64, 16: 64, 32: 64}  # of these, from the coarser map


class PspPyramid(nn.Module):
    """Features at each of `strides`, coarsest first; `widths` are their channels."""

    def __init__(self, strides: tuple[int, ...]) -> None:
        super().__init__()
        coarsest = strides[0]
        self.widths = {coarsest: _DOWN[coarsest], **{s: _UP[s] for s in strides[1:]}}
        self.stem = nn.Sequential(
            LeakyBlock(3, 16, stride=2), LeakyBlock(16, 16), LeakyBlock(16, 32)
        )
        self.down = nn.ModuleDict(
            {str(s): ResidualBlock(_DOWN[s // 2], _DOWN[s]) for s in _DOWN if 4 < s <= coarsest}
        )
        self.pooling = PyramidPooling(_DOWN[coarsest])
        self.up = nn.ModuleDict(
            {
                str(s): SkipMerge(self.widths[2 * s], _CARRIED[s], _DOWN[s], _UP[s])
                for s in strides[1:]
            }
        )

    def forward(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> features (B, C, H/stride, W/stride), coarsest first."""
        x = F.max_pool2d(self.stem(image), 3, 2, 1)
        skips = {4: x}
        for stride, block in self.down.items():
            x = skips[int(stride)] = block(x)
        maps = [self.pooling(x)]
        for stride, merge in self.up.items():
            maps.append(merge(maps[-1], skips[int(stride)]))
        return maps


class ResidualBlock(nn.Module):
    """Two convolutions with a 1x1 shortcut; the size is halved."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.first = LeakyBlock(in_channels, channels, stride=2)
        self.second = _conv_norm(channels, channels, 3)
        self.shortcut = _conv_norm(in_channels, channels, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, C, H/2, W/2)."""
        return F.leaky_relu(self.second(self.first(x)) + self.shortcut(x), SLOPE)


class PyramidPooling(nn.Module):
    """Add means over parts of the frame: `num_paths` grids, from many cells to a single one."""

    def __init__(self, channels: int, num_paths: int = 3) -> None:
        super().__init__()
        self.paths = nn.ModuleList(LeakyBlock(channels, channels, 1) for _ in range(num_paths))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        height, width = x.shape[-2:]
        most, last = max(min(height, width) // 2, 1), len(self.paths) - 1
        total = x
        for index, path in enumerate(self.paths):
            cells = 1 + (most - 1) * (last - index) // last
            means = path(F.avg_pool2d(x, (height // cells, width // cells)))
            total = total + upsample_pixels(means, (height, width)) / len(self.paths)
        return F.leaky_relu(total / 2, SLOPE)


class SkipMerge(nn.Module):
    """Bring the coarser map to the size of `skip` and merge the two."""

    def __init__(self, coarse: int, carried: int, skip: int, channels: int) -> None:
        super().__init__()
        self.carry = LeakyBlock(coarse, carried)
        self.fuse = LeakyBlock(skip + carried, channels)

    def forward(self, coarse: Tensor, skip: Tensor) -> Tensor:
        """(B, coarse, h, w), (B, skip, H, W) -> (B, C, H, W)."""
        enlarged = upsample_pixels(coarse, (skip.shape[-2], skip.shape[-1]))
        return self.fuse(torch.cat([skip, self.carry(enlarged)], 1))


def _conv_norm(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels))
