"""The displacement-aware projection (DAP)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DisplacementProjection(nn.Module):
    """Replaces each score by a weighted sum of all scores of its pixel.

    A 1x1 convolution over the flattened displacements, without bias, that starts as the
    identity. Its weight does not belong to an `nn.Conv2d`, so that `nn.initialize` leaves it alone.
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
