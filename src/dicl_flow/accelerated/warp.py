"""The warp of a level's features on a CPU: a weighted sum of the rows of four pixels."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import INSIDE, size_of


def warp(features: Tensor, flow: Tensor) -> Tensor:
    """The same as `ops.warp`, channels last: (B, C, H, W), of two pixels a side at least."""
    height, width = size_of(features)
    number = partial(torch.arange, device=flow.device)
    left, far, seen_across = _neighbours(flow[:, 0] + number(width), width)
    top, low, seen_down = _neighbours(flow[:, 1] + number(height)[:, None], height)
    seen = seen_across.mul_(seen_down)
    seen = torch.where(seen >= INSIDE, seen, 0)
    near, high, low = 1 - far, (1 - low) * seen, low * seen
    weights = torch.stack([high * near, high * far, low * near, low * far], 3)
    images = number(0, len(flow) * height, height)[:, None, None]
    first = top.add_(images).mul_(width).add_(left)  # the number of a row of all images
    places = first[..., None] + first.new_tensor([0, 1, width, width + 1])
    rows = features.permute(0, 2, 3, 1).flatten(0, 2).to(flow.dtype)
    places, weights = places.flatten(0, 2), weights.flatten(0, 2)
    found = F.embedding_bag(places, rows, mode="sum", per_sample_weights=weights)
    return found.unflatten(0, first.shape).permute(0, 3, 1, 2).to(features.dtype)


def _neighbours(position: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pixel before a position, how far that is, and how much of the sample is in the image."""
    seen = torch.minimum(position + 1, side - position).clamp_(0, 1)
    position = position.nan_to_num_(0).clamp_(0, side - 1)
    before = position.floor().clamp_(max=side - 2)
    return before.long(), position.sub_(before), seen
