"""Convolution blocks, how their weights start, and the context net made of them."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from ..ops import at_least_float32, resize, size_of

SLOPE = 0.1  # of LeakyReLU, in PWC-Net and VCN


def _conv(
    channels: tuple[int, int], *, bias: bool, kernel: int = 3, stride: int = 1, dilation: int = 1
) -> nn.Conv2d:
    """A convolution that keeps the size, divided by the stride."""
    return nn.Conv2d(*channels, kernel, stride, dilation * (kernel // 2), dilation, bias=bias)


class ConvBlock(nn.Module):
    """Convolution without bias, batch norm unless `norm=False`, ReLU.

    `shape` is that of `_conv`; `up` makes it a 4x4 transposed one that doubles the size.
    """

    def __init__(
        self, inputs: int, outputs: int, *, up: bool = False, norm: bool = True, **shape: int
    ) -> None:
        super().__init__()
        self.conv: nn.Module
        if up:
            self.conv = nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False)
        else:
            self.conv = _conv((inputs, outputs), bias=False, **shape)
        self.bn = nn.BatchNorm2d(outputs) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W')."""
        return torch.relu(self.bn(self.conv(x)))


class LeakyBlock(nn.Sequential):
    """Convolution, batch norm unless `norm=False`, LeakyReLU: the block of PWC-Net and VCN."""

    def __init__(
        self, inputs: int, outputs: int, *, norm: bool = True, bias: bool = False, **shape: int
    ) -> None:
        conv, norms = _conv((inputs, outputs), bias=bias, **shape), [nn.BatchNorm2d(outputs)] * norm
        super().__init__(conv, *norms, nn.LeakyReLU(SLOPE))


def dilated_net(
    in_channels: int, layers: Sequence[tuple[int, int]], out_channels: int, *, norm: bool
) -> nn.Sequential:
    """Return leaky blocks of (width, dilation) and a plain convolution, all with a bias."""
    widths = [in_channels, *(width for width, _ in layers)]
    blocks = [
        LeakyBlock(width, next_width, dilation=dilation, norm=norm, bias=True)
        for width, (next_width, dilation) in zip(widths[:-1], layers, strict=True)
    ]
    return nn.Sequential(*blocks, nn.Conv2d(widths[-1], out_channels, 3, padding=1))


def apply_in_float32(layer: nn.Conv2d | nn.ConvTranspose2d, x: Tensor) -> Tensor:
    """Run a layer whose output is a flow without autocast, which would leave it three digits."""
    kind = x.device.type
    known = torch.amp.is_autocast_available(kind)
    with torch.autocast(kind, enabled=False) if known else nullcontext():
        return at_least_float32(layer(x.to(layer.weight.dtype)))


def initialize(model: nn.Module, fan: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Kaiming normal (ReLU) for every convolution; batch norms keep torch's 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class ContextNet(nn.Module):
    """Corrects a matched flow from its surroundings, with dilated convolutions."""

    def __init__(
        self, feature_channels: int, layers: tuple[tuple[int, int], ...], scale: float
    ) -> None:
        super().__init__()
        widths = [2 + 1 + feature_channels + 3, *(width for width, _ in layers)]  # as in `forward`
        pairs = zip(widths[:-1], layers, strict=True)
        blocks = [ConvBlock(width, out, dilation=dilation) for width, (out, dilation) in pairs]
        self.layers = nn.Sequential(*blocks, nn.Conv2d(widths[-1], 2, 3, padding=1))
        self.scale = scale

    def forward(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """The correction (B, 2, H, W) to add to `flow`, in its precision."""
        # flow and entropy are inputs without gradients
        parts = [flow.detach(), entropy.detach(), features, resize(image, size_of(features))]
        x = torch.cat([part.to(features.dtype) for part in parts], 1)
        return self.layers(x).to(flow.dtype) * self.scale
