"""Convolutions for training on GPUs: with norm and ReLU in one kernel, or channels last."""

import torch
from torch import Tensor, nn

from ...nn.blocks import ConvBlock


class FusedConvBlock(ConvBlock):
    """The fast twin of `ConvBlock` for training on GPUs: norm and ReLU in one kernel.

    Only where plain batch norm takes the statistics of its batch; frozen, shared or missing
    norms are computed as in `ConvBlock`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'), channels last."""
        norm = self.bn
        if type(norm) is not nn.BatchNorm2d or not norm.training:
            return super().forward(x)
        from ..kernels.norm_relu import norm_relu

        assert norm.momentum is not None  # `ConvBlock` makes no cumulative averages
        mean, variance, batches = norm.buffers()
        return norm_relu(
            self.conv(x), norm.weight, norm.bias, mean, variance, batches, norm.momentum, norm.eps
        )


class ChannelsLastConv3d(nn.Conv3d):
    """The fast twin of a filter of volumes: what it gives is channels last.

    Norms of few channels have few blocks to run in otherwise, and cuDNN no tensor cores. Its
    weights ask for that order, but of a volume of one channel torch cannot tell it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, D, H, W) -> (B, out, D', H', W')."""
        return super().forward(x).contiguous(memory_format=torch.channels_last_3d)
