"""Scenes with depth: layers are planes in space, and the camera moves between them.

The inverse depth of a plane is linear in the picture, so the flow of its points has a closed form,
as the renderer needs it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import RenderConfig
from .dice import Dice

_FARTHEST = (0.02, 0.35)  # inverse depth of the background
_TILT = 0.8  # largest relative change of the inverse depth from the middle of a layer to its edge
_ROLL = 0.06  # rad: standard deviation of the roll of the ground
_NEAREST = 1.5  # largest inverse depth
_MOVING_SHARE = 0.3  # share of layers with their own motion; the others rest in space


@dataclass(frozen=True)
class Space:
    """The position of the D layers of a scene in space; inverse depth 1 is near, 0 infinitely far.

    In scenes without depth, inverse depth and travel are 0.
    """

    deep: Tensor
    """(B, 1): 1.0 for scenes with depth, else 0.0."""
    middle: Tensor
    """(B, D, 1, 1) inverse depth at the centre of the frame."""
    slope: Tensor
    """(B, D, 1, 2) its change per pixel."""
    travel: Tensor
    """(B, 1, 1, 3) motion of the camera: px to the side and down, share of the depth forward."""
    ground: Tensor
    """(B, D): 1.0 for layers that reach from their horizon to the edge of the frame, else 0.0."""
    facing: Tensor
    """(B, D, 2) for these layers, the unit vector from the horizon towards the camera."""
    horizon: Tensor
    """(B, D, 2) for these layers, a point of the horizon, relative to the centre of the frame."""
    moving: Tensor
    """(B, D): 1.0 for layers with their own motion, else 0.0."""

    def inverse_depth(self, offset: Tensor) -> Tensor:
        """(B, D, P, 2) positions relative to the centre of the frame -> (B, D, P, 1)."""
        change = (self.slope * offset).sum(-1, keepdim=True)
        return (self.middle + change).clamp(0, _NEAREST)


def draw_space(
    config: RenderConfig, dice: Dice, pace: Tensor, size: tuple[int, int], layers: int
) -> Space:
    """Draw the positions of the layers of each scene, and the motion of the camera."""
    batch = len(pace)
    half = torch.stack([pace.new_full((), side / 2) for side in (size[1], size[0])])
    deep = dice.happens(batch, 1, share=config.depth_share)
    low, high = _FARTHEST
    far = dice.uniform(batch, 1, low=low, high=high)
    near = far + (1 - far) * dice.uniform(batch, layers).sort(1).values  # the last is the nearest
    middle = torch.cat([far, near[:, 1:]], 1)  # (B, D)
    tilt = dice.directions(batch, layers) * dice.mostly_small(batch, layers, 1, extent=_TILT)
    slope = tilt * middle[..., None] / half.max()
    ground, facing, horizon = _draw_grounds(config, dice, batch, layers, half)
    # from the depth of the background at the horizon to a near one at the edge of the frame
    rise = dice.uniform(batch, layers, low=0.5, high=1.2) / (facing.abs() * half).sum(-1)
    rising = rise[..., None] * facing
    slope = torch.lerp(slope, rising, ground[..., None])
    middle = torch.lerp(middle, far - (rising * horizon).sum(-1), ground)
    moving = dice.happens(batch, layers, share=_MOVING_SHARE) * (1 - ground)
    return Space(
        deep=deep,
        middle=(deep * middle)[..., None, None],
        slope=(deep[..., None] * slope)[:, :, None],
        travel=(deep * _draw_travel(config, dice, pace))[:, None, None],
        ground=deep * ground,
        facing=facing,
        horizon=horizon,
        moving=torch.where(deep > 0, moving, 1.0),
    )


def _draw_grounds(
    config: RenderConfig, dice: Dice, batch: int, layers: int, half: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which layers are ground or wall (B, D), their facing and their horizon (B, D, 2).

    The first layer in front of the background may be the ground, the second a wall.
    """
    kinds = min(2, layers - 1)
    there = [dice.happens(batch, share=share) for share in config.ground_share[:kinds]]
    empty = torch.zeros(batch, device=dice.device)
    ground = torch.stack([empty, *there, *[empty] * (layers - 1 - kinds)], 1)
    side = math.pi / 2 * (1 + dice.uniform(batch, layers, low=-1.0).sign())  # right or left
    down = torch.full_like(side, math.pi / 2)
    angle = torch.where(torch.arange(layers, device=dice.device) == 1, down, side)
    angle = angle + _ROLL * dice.normal(batch, layers)
    facing = torch.stack([angle.cos(), angle.sin()], -1)
    away = dice.uniform(
        batch, layers, 1, low=-0.3, high=0.3
    )  # distance of the horizon from the centre
    return ground, facing, facing * away * half


def _draw_travel(config: RenderConfig, dice: Dice, pace: Tensor) -> Tensor:
    """(B, 3): half of the cameras move mostly forward, the others mostly sideways."""
    batch = len(pace)
    drives = dice.happens(batch, share=0.5)
    ahead = dice.uniform(batch, low=-0.25).sign()  # one of five moves backward
    forward = ahead * dice.uniform(batch, high=config.travel_forward) * pace.clamp(max=1.5)
    length = dice.lengths(batch, quantiles=config.travel_sideways) * pace
    sideways = dice.directions(batch) * (length * (1 - 0.8 * drives))[:, None]
    forward = forward * (0.2 + 0.8 * drives)
    return torch.cat([sideways, forward[:, None]], 1)
