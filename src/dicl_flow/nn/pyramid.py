"""The features of DICL-Flow."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from .blocks import ConvBlock

WIDTHS = {2: 32, 4: 48, 8: 64, 16: 96, 32: 128, 64: 160, 128: 192}  # channels at each stride


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
