"""The photometric loss of pairs without ground truth: census of what is visible, smooth flow."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import LossConfig
from ..data import FlowBatch, UnlabelledBatch
from ..data.augmentation import LUMA
from ..models import LevelFlow
from ..ops import (
    displacement_windows,
    front_sources,
    landing_places,
    length,
    resize_by_matrices,
    sample_clamped,
    sampling_grid,
    size_of,
    upsample_flow,
)

_RADIUS = 2  # px: the census compares a pixel with the squares around it, 5x5
_GREY_LEVELS = 255
_NOISE = 0.81  # squared grey levels: smaller differences count less in the census
_DIFFERENT = 0.1  # squared difference of two census values at which the distance is a half
_SMOOTH, _POWER = 0.01, 0.4  # large distances are outliers and count less
_SAME_SURFACE = (1.0, 0.05)  # px, and share of its length: how far the flow of one surface differs
_CLEARLY = 0.05  # what is in front fits better by this distance at least
_EDGE = 10.0  # how fast smoothness falls with the difference of colours in [0, 1]
_BEND = 1e-3  # px: smaller bends count by their square


def has_photometric_loss(config: LossConfig, batch: FlowBatch) -> bool:
    """Whether this loss counts for a batch."""
    return any(config.photometric) and isinstance(batch, UnlabelledBatch)


def photometric_loss(levels: Sequence[LevelFlow], batch: FlowBatch, config: LossConfig) -> Tensor:
    """Weighted mean over the levels of census loss and smoothness, of their flows at full size.

    What is hidden is decided by the flow of the last level: it is the best there is.
    """
    kind = "refined" if config.refined else "matched"
    flows = [upsample_flow(getattr(e, kind), size_of(batch.image1), _resize) for e in levels]
    gray1, gray2 = _luma(batch.image1), _luma(batch.image2)
    with torch.no_grad():
        visible = find_visible(flows[-1], census_distance(gray1, gray2, flows[-1]))
    census, smoothness = config.photometric
    terms = [
        weight * _mean_outliers_less(census_distance(gray1, gray2, flow), visible) * census
        + weight * bending(flow, batch.image1) * smoothness
        for weight, flow in zip(getattr(config, kind), flows, strict=True)
        if weight
    ]
    return torch.stack(terms).mean()


def census_distance(gray1: Tensor, gray2: Tensor, flow: Tensor) -> Tensor:
    """(B, H, W) in [0, 1]: how far (B, 1, H, W) images differ along the flow, whatever the light.

    Each pixel is compared with its neighbours, so a change of brightness alone does not count.
    """
    census1, census2 = _census(gray1), _census(sample_clamped(gray2, sampling_grid(flow)))
    squared = (census1 - census2) ** 2
    return (squared / (_DIFFERENT + squared)).mean(1)


def find_visible(flow: Tensor, distance: Tensor) -> Tensor:
    """(B, H, W) bool: the flow ends inside the frame, at a pixel that nothing nearer ends at.

    Of several pixels with different motion that end at one pixel, the one that fits best is in
    front: what is hidden in frame 2 fits what hides it badly.
    """
    size = size_of(flow)
    around = F.avg_pool2d(distance[:, None], 5, 1, 2).flatten(1).nan_to_num(1).clamp(0, 1)
    x, y = (position.round() for position in _ends(flow))
    place = landing_places(x, y, size).flatten(1)
    front = front_sources(place[:, None], ((1 - around) * 2**20).round())
    winner = front.gather(1, place.clamp(min=0)).clamp(min=0)  # where the flow ends
    motion = flow.flatten(2)
    other = motion.gather(2, winner[:, None].expand_as(motion))
    least, share = _SAME_SURFACE
    differs = length(other - motion) > least + share * length(motion)
    hidden = differs & (around.gather(1, winner) + _CLEARLY < around)
    return ((place >= 0) & ~hidden).unflatten(1, size) & _has_neighbours(flow)


def bending(flow: Tensor, image: Tensor) -> Tensor:
    """Mean length of the second differences of a flow (B, 2, H, W), less across edges of `image`.

    A flow that is linear in the position costs nothing: planes may be at any angle.
    """
    total = flow.new_zeros(())
    for axis in (2, 3):
        bend = flow.diff(n=2, dim=axis).square().sum(1).add(_BEND**2).sqrt() - _BEND
        step = image.diff(dim=axis).abs().mean(1, keepdim=True)
        last = step.shape[axis] - 1
        across = torch.maximum(step.narrow(axis, 0, last), step.narrow(axis, 1, last))
        total = total + (bend * (-_EDGE * across[:, 0]).exp()).mean()
    return total


def _mean_outliers_less(distance: Tensor, visible: Tensor) -> Tensor:
    penalty = (distance + _SMOOTH) ** _POWER
    return (penalty * visible).sum() / visible.sum().clamp(min=1)


def _luma(image: Tensor) -> Tensor:
    red, green, blue = (weight * part for weight, part in zip(LUMA, image.split(1, 1), strict=True))
    return red + green + blue


def _census(gray: Tensor) -> Tensor:
    """(B, 25, H, W) in (-1, 1): whether the pixels around are brighter."""
    brighter = displacement_windows(gray, _RADIUS).flatten(1, 3) - gray
    brighter = brighter * _GREY_LEVELS
    return brighter / (_NOISE + brighter**2).sqrt()


def _ends(flow: Tensor) -> tuple[Tensor, Tensor]:
    """Where the flow ends, (B, H, W) each, in px."""
    height, width = size_of(flow)
    x = torch.arange(width, device=flow.device) + flow[:, 0]
    return x, torch.arange(height, device=flow.device)[:, None] + flow[:, 1]


def _has_neighbours(flow: Tensor) -> Tensor:
    """(H, W) bool: not at the border of the frame, where the census lacks pixels."""
    inside = flow.new_zeros(size_of(flow), dtype=torch.bool)
    inside[_RADIUS:-_RADIUS, _RADIUS:-_RADIUS] = True
    return inside


def _resize(flow: Tensor, size: tuple[int, int]) -> Tensor:
    return resize_by_matrices(flow, size)
