"""The paper's matching net, its layers by name."""

from typing import cast

from torch import nn

from ..nn import ConvBlock


class MatchingNet(nn.Sequential):
    """Six layers on (B, 2C, H, W) pairs of features: down to half the size and up again.

    Accelerated versions take the layers from these properties, and widths, windows and strides from
    the layers. State-dict keys are positions, as in the published weights.
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
