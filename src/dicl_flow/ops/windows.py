"""Feature maps shifted by every displacement."""

import torch
import torch.nn.functional as F
from torch import Tensor


def displacement_windows(features: Tensor, radius: int) -> Tensor:
    """View (B, C, H, W) as (B, C, U, V, H, W): entry [u, v] is `features` moved by (u-r, v-r).

    U is horizontal, V vertical; moved by d means that pixel p shows p + d. Zero outside the image,
    even if it is smaller than the window. The result is a view of one padded copy.
    """
    height, width = features.shape[-2:]
    padded = F.pad(features, [radius] * 4)
    if torch.compiler.is_exporting():  # unfold would fix this height and width in the file
        shifts = range(2 * radius + 1)
        rows = torch.stack([padded[..., v : v + height, :] for v in shifts], 2)
        return torch.stack([rows[..., u : u + width] for u in shifts], 2)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, V, U, H, W)
    return windows.transpose(2, 3)
