"""Filters for multi-channel 4-D volumes (B, C, U, V, H, W): over displacements, then over space."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SeparableConv(nn.Module):
    """A 4-D convolution as two 2-D ones with a ReLU between; each has a norm or a bias.

    `stride` is for the displacements, `space_stride` for the pixels.
    """

    def __init__(
        self,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        space_stride: int = 1,
        *,
        norm: bool = True,
    ) -> None:
        super().__init__()
        k, s, p = kernel, space_stride, kernel // 2
        self.over_displacements = nn.Conv3d(
            channels, channels, (k, k, 1), (stride, stride, 1), (p, p, 0), bias=not norm
        )
        self.over_space = nn.Conv3d(
            channels, channels, (1, k, k), (1, s, s), (0, p, p), bias=not norm
        )
        self.norm1 = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(channels) if norm else nn.Identity()

    def forward(self, volume: Tensor) -> Tensor:
        """(B, C, U, V, H, W) -> (B, C, U', V', H', W')."""
        space = volume.shape[-2:]
        x = self.over_displacements(volume.flatten(4))  # (B, C, U', V', H·W)
        displacements = x.shape[2:4]
        x = torch.relu(_normed(x, self.norm1))
        x = self.over_space(x.flatten(2, 3).unflatten(-1, space))  # (B, C, U'·V', H', W')
        return _normed(x, self.norm2).unflatten(2, displacements)


class PointwiseConv(nn.Module):
    """Mixes the channels of each cell, then a norm; a stride leaves displacements out."""

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, channels, 1, (stride, stride, 1), bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, volume: Tensor) -> Tensor:
        """(B, in, U, V, H, W) -> (B, C, U', V', H, W)."""
        x = _normed(self.conv(volume.flatten(4)), self.norm)
        return x.unflatten(-1, volume.shape[-2:])


class VolumeBlock(nn.Module):
    """Two separable convolutions with a shortcut; a stride of 2 halves the displacements.

    With `space`, it halves the pixels as well.
    """

    def __init__(self, channels: int, stride: int = 1, *, space: bool = False) -> None:
        super().__init__()
        strides = (stride, stride if space else 1)
        self.first = SeparableConv(channels, 3, *strides)
        self.second = SeparableConv(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            wide = SeparableConv(channels, 1, *strides) if space else None
            self.shortcut = wide or PointwiseConv(channels, channels, stride)

    def forward(self, volume: Tensor) -> Tensor:
        """(B, C, U, V, H, W) -> (B, C, U', V', H', W')."""
        changed = self.second(torch.relu(self.first(volume)))
        return torch.relu(self.shortcut(volume) + changed)


class VolumeFilter(nn.Module):
    """A U-Net over a volume: twice down, twice up, over the displacements.

    With `space`, over the pixels as well.
    """

    def __init__(self, in_channels: int, channels: int, *, space: bool) -> None:
        super().__init__()
        self.project = PointwiseConv(in_channels, channels)
        self.down = nn.ModuleList(VolumeBlock(channels, 2, space=space) for _ in range(2))
        self.bottom = VolumeBlock(channels)
        self.up = nn.ModuleList(VolumeBlock(channels) for _ in range(2))

    def forward(self, volume: Tensor) -> Tensor:
        """(B, in, U, V, H, W) -> (B, C, U, V, H, W)."""
        skips = [torch.relu(self.project(volume))]
        for block in self.down:
            skips.append(block(skips[-1]))
        x = self.bottom(skips.pop())
        for block in self.up:
            skip = skips.pop()
            x = block(skip + resize_volume(x, skip.shape[2:]))
        return x


def resize_volume(volume: Tensor, size: torch.Size) -> Tensor:
    """Interpolate (B, C, U, V, H, W) to the last four sides `size`, cells being areas."""
    *displacements, height, width = size
    space = volume.shape[-2:]
    x = volume.flatten(4)
    x = F.interpolate(x, [*displacements, x.shape[-1]], mode="trilinear", align_corners=False)
    if space != (height, width):
        x = x.flatten(2, 3).unflatten(-1, space)  # (B, C, U·V, h, w)
        x = F.interpolate(x, [x.shape[2], height, width], mode="trilinear", align_corners=False)
    return x.reshape(*volume.shape[:2], *size)


def _normed(x: Tensor, norm: nn.Module) -> Tensor:
    """Apply a 2-D batch norm to a 5-D tensor: the statistics are the same as those of a 3-D one."""
    return norm(x.flatten(3)).unflatten(-1, x.shape[3:])
