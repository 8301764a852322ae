"""Metrics without learned parameters, except for a scale where a softmax follows."""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import displacement_windows
from .contract import Matcher


class CorrelationMatcher(Matcher):
    """The mean over channels of the product, as in PWC-Net: nothing is learned."""

    def __init__(self, channels: int, radius: int) -> None:
        super().__init__()
        self.radius = radius

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        moved = displacement_windows(features2, self.radius)
        return (features1[:, :, None, None] * moved).mean(1, keepdim=True)


class ChannelwiseMatcher(Matcher):
    """The product of each channel separately, as in VCN: K = C, nothing is learned."""

    def __init__(self, channels: int, radius: int) -> None:
        super().__init__()
        self.radius, self.out_channels = radius, channels

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, C, U, V, H, W)."""
        return features1[:, :, None, None] * displacement_windows(features2, self.radius)


class DotMatcher(CorrelationMatcher):
    """The mean over channels of the product, times a learned scale."""

    def __init__(self, channels: int, radius: int) -> None:
        super().__init__(channels, radius)
        # sqrt(C)·mean = sum/sqrt(C): unit variance for independent unit features
        self.scale = nn.Parameter(torch.tensor(sqrt(channels)))

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        return self.scale * super().forward(features1, features2)


class CosineMatcher(Matcher):
    """The cosine of the angle between the feature vectors, times a learned scale."""

    def __init__(self, channels: int, radius: int) -> None:
        super().__init__()
        self.radius = radius
        # after a softmax, a match has e^10 times the weight of orthogonal features
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        unit1, unit2 = F.normalize(features1, dim=1), F.normalize(features2, dim=1)
        moved = displacement_windows(unit2, self.radius)
        return self.scale * (unit1[:, :, None, None] * moved).sum(1, keepdim=True)
