"""Learned matching: one small net scores each pair of concatenated feature maps."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from ..nn import ConvBlock
from ..ops import displacement_windows
from .contract import Matcher


class PairwiseMatcher(Matcher):
    """Run the same `net` on every displacement: [features1, shifted features2] -> score.

    Where the shifted features are all zero (outside the image, or in a hole left by the warp),
    there is nothing to compare: both halves of the pair are set to zero.
    """

    def __init__(self, net: nn.Module, radius: int) -> None:
        super().__init__()
        self.net = net
        self.radius = radius

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        height, width = features1.shape[-2:]
        score = self.net(self.pairs(features1, features2))
        score = score[..., :height, :width]  # the strided net rounds odd sizes up
        side = 2 * self.radius + 1
        return score.unflatten(0, (-1, side, side)).permute(0, 3, 1, 2, 4, 5)

    def pairs(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> the input of the net: (B·U·V, 2C, H, W)."""
        moved = displacement_windows(features2, self.radius)
        visible = (moved != 0).any(1, keepdim=True)
        pairs = torch.cat([features1[:, :, None, None] * visible, moved], 1)
        return pairs.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)


def reduced_net(in_channels: int) -> nn.Sequential:
    """Return a net with the six widths of the matching net and 1x1 kernels: no neighbourhood."""
    return _pixelwise_net(in_channels, 96, 128, 128, 64, 32)


def mlp_net(in_channels: int) -> nn.Sequential:
    """Return a three-layer perceptron for each pair of pixels."""
    return _pixelwise_net(in_channels, 96, 64)


def _pixelwise_net(*widths: int) -> nn.Sequential:
    hidden = [ConvBlock(a, b, kernel=1) for a, b in pairwise(widths)]
    return nn.Sequential(*hidden, nn.Conv2d(widths[-1], 1, 1))
