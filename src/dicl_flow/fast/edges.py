"""Where the factored first layer does not hold: border pixels, and holes nearby.

The first layer of the matching net sees F1(p) and F2(p+u) through a 3x3 window, and both are
zero where F2(p+u) is hidden: outside the image or all zero. Away from such places the layer
is a sum of two terms, A(p) + B(p+u). Here are the others, computed as they are defined.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class Edges:
    """All (displacement, pixel) positions that need exact values, and those values."""

    def __init__(self, features1: Tensor, features2: Tensor, radius: int) -> None:
        """Both (B, C, H, W)."""
        batch, _, self.height, self.width = features1.shape
        self.radius, self.num_pixels = radius, batch * self.height * self.width
        visible = (features2 != 0).any(1, keepdim=True)  # (B, 1, H, W)
        margin = radius + 1
        self._rows1, self._rows2 = _rows(features1, 1), _rows(features2, margin)
        self._inside = _rows(torch.ones_like(visible), 1).squeeze(1)
        self._visible = _rows(visible, margin).squeeze(1)
        hidden = F.pad((~visible).float(), [margin] * 4, value=1.0)
        some, every = F.max_pool2d(hidden, 3, 1), 1 - F.max_pool2d(1 - hidden, 3, 1)
        on_border = torch.ones_like(visible)
        on_border[..., 1:-1, 1:-1] = False
        hidden_windows = self._windows(every > 0)
        self.empty = _positions(hidden_windows)
        """Flat positions in (U, V, B, H, W) where the whole window is hidden, in order."""
        self.partial = _positions((self._windows(some > 0) | on_border[:, 0]) & ~hidden_windows)
        """Flat positions where a part of the window is hidden or outside, in order."""

    def patches(self, positions: Tensor) -> Tensor:
        """Flat positions (N,) -> what the first layer sees there: (N, 9·2C), taps first."""
        side = 2 * self.radius + 1
        x, y = positions % self.width, positions // self.width % self.height
        image = positions % self.num_pixels // (self.height * self.width)
        displacement = positions // self.num_pixels
        taps1 = self._taps(image, y, x, 1)
        margin = self.radius + 1
        taps2 = self._taps(image, y + displacement % side, x + displacement // side, margin)
        seen = (self._inside[taps1] & self._visible[taps2]).unsqueeze(2)  # (N, 9, 1)
        values = [F.embedding(taps1, self._rows1), F.embedding(taps2, self._rows2)]
        return (torch.cat(values, 2) * seen).flatten(1)

    def _taps(self, image: Tensor, y: Tensor, x: Tensor, margin: int) -> Tensor:
        """Row numbers (N, 9) of the window around (y, x) in a map padded by `margin`."""
        height, width = self.height + 2 * margin, self.width + 2 * margin
        steps = torch.arange(3, device=x.device)
        offsets = (steps[:, None] * width + steps).flatten()
        return ((image * height + y) * width + x)[:, None] + offsets

    def _windows(self, mask: Tensor) -> Tensor:
        """(B, 1, H+2r, W+2r) -> (U, V, B, H, W)."""
        windows = mask.squeeze(1).unfold(1, self.height, 1).unfold(2, self.width, 1)
        return windows.permute(2, 1, 0, 3, 4)


def _positions(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero().squeeze(1)


def _rows(features: Tensor, margin: int) -> Tensor:
    """(B, C, H, W) -> (B·(H+2m)·(W+2m), C), zero in the margin."""
    return F.pad(features, [margin] * 4).permute(0, 2, 3, 1).flatten(0, 2)
