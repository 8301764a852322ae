"""Convolutions for training on GPUs: with norm and ReLU in one kernel, of images, channels last."""

import torch
from torch import Tensor, nn

from ...nn.blocks import ConvBlock


class AcceleratedConvBlock(ConvBlock):
    """A `ConvBlock` with norm and ReLU in one kernel.

    Only where batch norm uses the statistics of its batch; frozen, synchronised or missing norms
    are computed as in `ConvBlock`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'), channels last."""
        return self.finish(self.conv(x))

    def finish(self, x: Tensor) -> Tensor:
        """Norm and ReLU of what the convolution gives."""
        norm = self.norm_of_batch()
        if norm is None:
            return torch.relu(self.bn(x))
        from ..kernels.norm_relu import norm_relu

        return norm_relu(x, *norm)

    def norm_of_batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float, float] | None:
        """What `norm_relu` needs to know of a norm that uses the statistics of its batch."""
        norm = self.bn
        if type(norm) is not nn.BatchNorm2d or not norm.training:
            return None
        assert norm.momentum is not None  # `ConvBlock` makes no cumulative averages
        mean, variance, batches = norm.buffers()
        return norm.weight, norm.bias, mean, variance, batches, norm.momentum, norm.eps


class ChannelsLastConv3d(nn.Conv3d):
    """A filter of volumes whose result is always channels last.

    Otherwise norms of few channels run in few blocks, and cuDNN uses no tensor cores. The weights
    ask for that order, but the strides of a volume of one channel do not show it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, D, H, W) -> (B, out, D', H', W')."""
        return super().forward(x).contiguous(memory_format=torch.channels_last_3d)


class ImageConv2d(nn.Conv2d):
    """A 3x3 convolution of images, without bias, at their size, as two kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W), channels last."""
        if x.requires_grad:  # the kernels give none of the images
            return super().forward(x)
        from ..kernels.stem_layer import stem_layer

        return stem_layer(x, self.weight)
