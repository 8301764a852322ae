"""The context net."""

import torch
from torch import Tensor, nn

from ..ops import resize
from .blocks import ConvBlock

_FLOW, _ENTROPY, _IMAGE = 2, 1, 3  # input channels in addition to the features


class ContextNet(nn.Module):
    """Corrects a matched flow from its surroundings, with dilated convolutions."""

    def __init__(
        self, feature_channels: int, layers: tuple[tuple[int, int], ...], scale: float
    ) -> None:
        super().__init__()
        width = _FLOW + _ENTROPY + feature_channels + _IMAGE
        blocks: list[nn.Module] = []
        for next_width, dilation in layers:
            blocks.append(ConvBlock(width, next_width, dilation=dilation))
            width = next_width
        self.layers = nn.Sequential(*blocks, nn.Conv2d(width, 2, 3, padding=1))
        self.scale = scale

    def forward(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """Return the correction (B, 2, H, W) to add to `flow`, in its precision.

        Flow and entropy are inputs without gradients.
        """
        size = (features.shape[-2], features.shape[-1])
        parts = [flow.detach(), entropy.detach(), features, resize(image, size)]
        x = torch.cat([part.to(features.dtype) for part in parts], 1)
        return self.layers(x).to(flow.dtype) * self.scale
