"""The contract of a matcher."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Matcher(nn.Module, ABC):
    """Scores every displacement of every pixel."""

    radius: int
    out_channels: int = 1

    @abstractmethod
    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, K, U, V, H, W) scores, higher is better."""
