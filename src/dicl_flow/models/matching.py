"""Matchers: ways to compare a pixel of frame 1 with its candidates in frame 2.

`matcher(features1, features2)` gives scores (B, K, U, V, H, W), higher is better,
K = `matcher.out_channels`; U is horizontal and V vertical, both from -`radius` to `radius`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from math import sqrt
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import unknown_name
from ..ops import displacement_windows
from .blocks import ConvBlock


class Matcher(nn.Module, ABC):
    """Scores every displacement of every pixel."""

    def __init__(self, radius: int, out_channels: int = 1) -> None:
        super().__init__()
        self.radius, self.out_channels = radius, out_channels

    @abstractmethod
    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, K, U, V, H, W) scores, higher is better."""


class CorrelationMatcher(Matcher):
    """The mean over channels of the product, as in PWC-Net: nothing is learned."""

    def __init__(self, channels: int, radius: int) -> None:
        super().__init__(radius)

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        moved = displacement_windows(features2, self.radius)
        return (features1[:, :, None, None] * moved).mean(1, keepdim=True)


class ChannelwiseMatcher(Matcher):
    """The product of each channel separately, as in VCN: K = C, nothing is learned."""

    def __init__(self, channels: int, radius: int) -> None:
        super().__init__(radius, channels)

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
        super().__init__(radius)
        # after a softmax, a match has e^10 times the weight of orthogonal features
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        unit1, unit2 = F.normalize(features1, dim=1), F.normalize(features2, dim=1)
        moved = displacement_windows(unit2, self.radius)
        return self.scale * (unit1[:, :, None, None] * moved).sum(1, keepdim=True)


class PairwiseMatcher(Matcher):
    """Run the same `net` on every displacement: [features1, shifted features2] -> score.

    Both are zero where the latter are: outside the image, or in a hole left by the warp.
    """

    def __init__(self, net: nn.Module, radius: int) -> None:
        super().__init__(radius)
        self.net = net

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


class MatchingNet(nn.Sequential):
    """Six layers on (B, 2C, H, W) pairs of features: down to half the size and up again.

    Accelerated versions take the layers from these properties, and their shape from the layers.
    State-dict keys are positions, as in the published weights.
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__(
            ConvBlock(in_channels, 96),
            ConvBlock(96, 128, stride=2),
            ConvBlock(128, 128),
            ConvBlock(128, 64),
            ConvBlock(64, 32, up=True),
            nn.Conv2d(32, 1, 3, padding=1),
        )

    @property
    def first(self) -> ConvBlock:
        """The layer that compares: it alone sees features."""
        return cast(ConvBlock, self[0])

    @property
    def down(self) -> ConvBlock:
        """The strided layer."""
        return cast(ConvBlock, self[1])

    @property
    def inner(self) -> list[ConvBlock]:
        """The layers at half the size."""
        return cast(list[ConvBlock], list(self)[2:-2])

    @property
    def up(self) -> ConvBlock:
        """The transposed layer, back to full size."""
        return cast(ConvBlock, self[-2])

    @property
    def score(self) -> nn.Conv2d:
        """The last layer: one channel, with a bias, no norm."""
        return cast(nn.Conv2d, self[-1])


def _pixelwise_net(*widths: int) -> nn.Sequential:
    """A perceptron for each pair of pixels."""
    hidden = [ConvBlock(a, b, kernel=1) for a, b in pairwise(widths)]
    return nn.Sequential(*hidden, nn.Conv2d(widths[-1], 1, 1))


class DisplacementProjection(nn.Module):
    """Replaces each score by a weighted sum of all scores of its pixel; starts as the identity.

    Its weight does not belong to an `nn.Conv2d`, so that `blocks.initialize` leaves it alone.
    """

    def __init__(self, radius: int) -> None:
        super().__init__()
        num_hypotheses = (2 * radius + 1) ** 2
        # not torch.eye: for a network on the meta device it would import sympy, for two seconds
        identity = torch.zeros(num_hypotheses, num_hypotheses).fill_diagonal_(1)
        self.weight = nn.Parameter(identity[:, :, None, None])

    def forward(self, scores: Tensor) -> Tensor:
        """(B, U, V, H, W) -> the same shape."""
        return F.conv2d(scores.flatten(1, 2), self.weight).unflatten(1, scores.shape[1:3])


_Build = Callable[[int, int], Matcher]  # of channels and radius
_METRICS: dict[str, _Build] = {"dot": DotMatcher, "cosine": CosineMatcher}
PAIRWISE_NETS: dict[str, Callable[[int], nn.Sequential]] = {
    "mlp": lambda channels: _pixelwise_net(channels, 96, 64),
    # the widths of the matching net, without its neighbourhood
    "reduced": lambda channels: _pixelwise_net(channels, 96, 128, 128, 64, 32),
    "dicl": MatchingNet,
}


def build_matcher(
    name: str | None, channels: int, radius: int, own: _Build | None = None
) -> Matcher:
    """The matcher `name`, or a host's `own`, for these features and displacements."""
    if name is None and own is not None:
        return own(channels, radius)
    if name in PAIRWISE_NETS:
        return PairwiseMatcher(PAIRWISE_NETS[name](2 * channels), radius)
    if name not in _METRICS:
        raise unknown_name("matcher", name, [*_METRICS, *PAIRWISE_NETS])
    return _METRICS[name](channels, radius)
