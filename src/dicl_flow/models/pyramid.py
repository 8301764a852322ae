"""Feature pyramids: that of DICL-Flow, and that of VCN."""

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import upsample_pixels
from .blocks import SLOPE, ConvBlock, LeakyBlock

WIDTHS = {2: 32, 4: 48, 8: 64, 16: 96, 32: 128, 64: 160, 128: 192}  # channels at each stride
# of the feature net of VCN:
_DOWN = {4: 32, 8: 64, 16: 128, 32: 128, 64: 128}  # channels at each stride, going down
_UP = {4: 64, 8: 64, 16: 128, 32: 128}  # and going up
_CARRIED = {4: 32, 8: 64, 16: 64, 32: 64}  # of these, from the coarser map


class FeaturePyramid(nn.Module):
    """A double hourglass: down, up, down, up; each sweep merges with the maps of the one before.

    The second sweep up gives features of `channels` at each of `strides`, coarsest first. The
    bottleneck has twice the coarsest stride.
    """

    def __init__(self, strides: tuple[int, ...], channels: int = 32) -> None:
        super().__init__()
        deepest, finest = 2 * strides[0], strides[-1]
        descent = [stride for stride in WIDTHS if stride <= deepest]
        ascent = descent[::-1]
        last_ascent = [stride for stride in ascent if stride >= finest]
        width = WIDTHS[2]
        self.strides = strides
        self.stem = nn.Sequential(
            ConvBlock(3, width), ConvBlock(width, width, stride=2), ConvBlock(width, width)
        )
        self.down = nn.ModuleDict(
            {str(s): ConvBlock(WIDTHS[s // 2], WIDTHS[s], stride=2) for s in descent[1:]}
        )
        self.up = Sweep(ascent)
        self.down_again = Sweep(descent)
        self.up_again = Sweep(last_ascent)
        self.outputs = nn.ModuleDict({str(s): ConvBlock(WIDTHS[s], channels) for s in strides})

    def forward(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> features (B, channels, H/stride, W/stride), coarsest first."""
        return list(self.ascend(self.descend(image)))

    def descend(self, image: Tensor) -> dict[int, Tensor]:
        """(B, 3, H, W) -> maps by stride: all sweeps but the last."""
        maps = {2: self.stem(image)}
        for stride, layer in self.down.items():
            maps[int(stride)] = layer(maps[int(stride) // 2])
        for sweep in (self.up, self.down_again):
            maps = dict(sweep(maps))
        return maps

    def ascend(self, maps: dict[int, Tensor]) -> Iterator[Tensor]:
        """Yield the features of each level as soon as they are computed."""
        for stride, features in self.up_again(maps):
            if stride in self.strides:  # not the bottleneck
                yield self.outputs[str(stride)](features)


class Merge(nn.Module):
    """Bring the neighbouring map to the size of `skip` and merge the two."""

    def __init__(self, in_channels: int, channels: int, *, up: bool) -> None:
        super().__init__()
        self.resample = ConvBlock(in_channels, channels, stride=2, up=up, norm=False)
        self.fuse = ConvBlock(2 * channels, channels)

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        return self.fuse(torch.cat([self.resample(neighbour), skip], 1))


class Sweep(nn.ModuleDict):
    """Walk along `strides`, merging each map into the next."""

    def __init__(self, strides: list[int]) -> None:
        self.path = list(pairwise(strides))
        super().__init__(
            {
                str(target): Merge(WIDTHS[source], WIDTHS[target], up=target < source)
                for source, target in self.path
            }
        )

    def forward(self, maps: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Yield each stride with its map; the first map is unchanged."""
        stride = self.path[0][0]
        x = maps[stride]
        yield stride, x
        for _, stride in self.path:
            x = self[str(stride)](x, maps[stride])
            yield stride, x


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
