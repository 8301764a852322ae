"""The motion of camera and layers: smooth functions from positions in frame 1 to displacements.

In scenes with depth, layers are planes in space, and the camera moves between them. The inverse
depth of a plane is linear in the picture, so the flow of its points has a closed form.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import RenderConfig
from ..ops import Size
from .shapes import Dice

_FARTHEST = (0.02, 0.35)  # inverse depth of the background
_TILT = 0.8  # largest relative change of the inverse depth from the middle of a layer to its edge
_ROLL = 0.06  # rad: standard deviation of the roll of the ground
_NEAREST = 1.5  # largest inverse depth
_MOVING_SHARE = 0.3  # share of layers with their own motion; the others rest in space
_NUM_WAVES = 2


@dataclass(frozen=True)
class Space:
    """The position of the D layers of a scene in space; without depth, all are infinitely far."""

    deep: Tensor  # (B, 1): 1.0 for scenes with depth, else 0.0
    middle: Tensor  # (B, D, 1, 1) inverse depth at the centre of the frame: 1 is near, 0 is far
    slope: Tensor  # (B, D, 1, 2) its change per pixel
    travel: Tensor  # (B, 1, 1, 3) of the camera: px to the side and down, share of depth forward
    ground: Tensor  # (B, D): 1.0 for layers from their horizon to the edge of the frame, else 0.0
    facing: Tensor  # (B, D, 2) of these layers: unit vector from the horizon towards the camera
    horizon: Tensor  # (B, D, 2) of these layers: a point of it, relative to the frame's centre
    moving: Tensor  # (B, D): 1.0 for layers with their own motion, else 0.0

    def inverse_depth(self, offset: Tensor) -> Tensor:
        """(B, D, P, 2) positions relative to the centre of the frame -> (B, D, P, 1)."""
        change = (self.slope * offset).sum(-1, keepdim=True)
        return (self.middle + change).clamp(0, _NEAREST)


def draw_space(config: RenderConfig, dice: Dice, pace: Tensor, size: Size, layers: int) -> Space:
    """Draw the positions of the layers of each scene, and the motion of the camera."""
    batch = len(pace)
    half = torch.stack([pace.new_full((), side / 2) for side in (size[1], size[0])])
    deep = dice.happens(batch, 1, share=config.depth_share)
    far = dice.uniform(batch, 1, low=_FARTHEST[0], high=_FARTHEST[1])
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
    """Return which layers are ground or wall (B, D), their facing and their horizon (B, D, 2)."""
    # the first layer in front of the background may be the ground, the second a wall
    kinds = min(2, layers - 1)
    there = [dice.happens(batch, share=share) for share in config.ground_share[:kinds]]
    empty = torch.zeros(batch, device=dice.device)
    ground = torch.stack([empty, *there, *[empty] * (layers - 1 - kinds)], 1)
    side = math.pi / 2 * (1 + dice.uniform(batch, layers, low=-1.0).sign())  # right or left
    down = torch.full_like(side, math.pi / 2)
    angle = torch.where(torch.arange(layers, device=dice.device) == 1, down, side)
    angle = angle + _ROLL * dice.normal(batch, layers)
    facing = torch.stack([angle.cos(), angle.sin()], -1)
    horizon = dice.uniform(batch, layers, 1, low=-0.3, high=0.3)  # its distance from the centre
    return ground, facing, facing * horizon * half


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


@dataclass(frozen=True)
class Camera:
    """The motion of the background under a moving camera: a homography about the frame centre."""

    pivot: Tensor  # (2,) the centre of the frame
    linear: Tensor  # (B, 1, 2, 2) rotation and zoom
    shift: Tensor  # (B, 1, 1, 2)
    perspective: Tensor  # (B, 1, 1, 2) change of scale per pixel
    space: Space | None = None  # the position of the layers in space, if any scene has depth
    follow: Tensor | float = 1.0  # (B, D, 1, 1) how much each layer moves with the camera

    def flow(self, points: Tensor) -> Tensor:
        """(B, D, P, 2) positions -> (B, D, P, 2) displacements."""
        offset = points - self.pivot
        moved = transform(self.linear, offset) + self.shift
        depth = 1 + (offset * self.perspective).sum(-1, keepdim=True)
        if self.space is not None:  # x + t / Z: near layers move more
            travel = self.space.inverse_depth(offset) * self.space.travel
            moved, depth = moved + travel[..., :2], depth - travel[..., 2:]
        return self.follow * (moved / depth.clamp_min(0.2) - offset)


@dataclass(frozen=True)
class OwnMotion:
    """The motion of D layers in addition to that of the camera."""

    center: Tensor  # (B, D, 2) centre of rotation, in frame 1
    linear: Tensor  # (B, D, 2, 2) rotation and zoom
    shift: Tensor  # (B, D, 2)
    wave_number: Tensor  # (B, D, N, 2) of the waves that deform the layer, in radians per pixel
    wave_phase: Tensor  # (B, D, 1, N)
    wave_height: Tensor  # (B, D, N, 2) in pixels

    def flow(self, points: Tensor) -> Tensor:
        """(B, D, P, 2) positions -> (B, D, P, 2) displacements."""
        offset = points - self.center[:, :, None]
        change = self.linear - torch.eye(2, device=offset.device)
        rigid = transform(change, offset) + self.shift[:, :, None]
        waves = (transform(self.wave_number, offset) + self.wave_phase).sin()  # (B, D, P, N)
        return rigid + transform(self.wave_height.mT, waves)

    def of_some(self, moving: Tensor) -> "OwnMotion":
        """Return the motion with layers at rest where (B, D) `moving` is 0.0 instead of 1.0."""
        moving = moving[..., None]
        still = torch.eye(2, device=moving.device)
        linear = torch.lerp(still, self.linear, moving[..., None])
        height = self.wave_height * moving[..., None]
        return replace(self, linear=linear, shift=self.shift * moving, wave_height=height)


def draw_pace(config: RenderConfig, dice: Dice, batch: int, size: Size) -> Tensor:
    """(B,) factor of all motion of a scene: mostly 1, sometimes small, large or 0."""
    kind = dice.uniform(batch)
    tiny = dice.log_uniform(batch, low=0.03, high=0.3)
    large = dice.uniform(batch, low=1.0, high=config.large_factor)
    pace = torch.where(kind > 1 - config.large_share, large, 1.0)
    pace = config.motion_in(size) * torch.where(kind < config.tiny_share, tiny, pace)
    if config.still_scenes:
        pace = pace * (1 - dice.happens(batch, share=config.still_scenes))
    return pace


def draw_camera(config: RenderConfig, dice: Dice, pace: Tensor, flat: Tensor, size: Size) -> Camera:
    """Draw the motion of the camera; `flat` (B, 2) damps motion that is not horizontal."""
    batch, half = len(pace), max(size) / 2
    turn_pace = pace.clamp(max=2) * flat[:, 1]
    length = dice.lengths(batch, quantiles=config.background_shift)
    shift = dice.directions(batch) * (length * pace)[:, None] * flat
    angle = dice.mostly_small(batch, extent=math.radians(config.background_rotation))
    zoom = dice.mostly_small(batch, extent=config.background_zoom)
    forward = dice.happens(batch, share=config.forward_share)
    inwards = dice.uniform(batch, low=-0.25).sign()  # one of five moves backward
    zoom = zoom + forward * inwards * dice.uniform(batch, high=config.forward_zoom)
    tilt = dice.mostly_small(batch, 2, extent=config.perspective / half)
    return Camera(
        pivot=torch.stack([pace.new_full((), (side - 1) / 2) for side in (size[1], size[0])]),
        linear=rotation_and_zoom(angle * turn_pace, zoom * turn_pace)[:, None],
        shift=shift[:, None, None],
        perspective=(tilt * turn_pace[:, None])[:, None, None],
    )


def draw_own_motion(
    config: RenderConfig, dice: Dice, pace: Tensor, flat: Tensor, layers: int
) -> OwnMotion:
    """Draw the motion of each layer, with centres at zero; the background is only deformed."""
    batch = len(pace)
    length = dice.lengths(batch, layers, quantiles=config.object_shift) * pace[:, None]
    shift = dice.directions(batch, layers) * length[..., None] * flat[:, None]
    angle = dice.mostly_small(batch, layers, extent=math.radians(config.object_rotation))
    zoom = dice.mostly_small(batch, layers, extent=config.object_zoom)
    turn = torch.stack([angle, zoom], -1) * (pace.clamp(max=1.5) * flat[:, 1])[:, None, None]
    rigid = _shared(config, dice, torch.cat([shift, turn], -1))  # (B, D, 4)
    return OwnMotion(
        torch.zeros_like(shift),
        rotation_and_zoom(rigid[..., 2], rigid[..., 3]),
        rigid[..., :2],
        *_draw_waves(config, dice, pace, flat, layers),
    )


def _shared(config: RenderConfig, dice: Dice, rigid: Tensor) -> Tensor:
    """Let some objects rest on the background, and some move like the object behind them."""
    batch, layers = rigid.shape[:2]
    moving = 1 - dice.happens(batch, layers, 1, share=config.still_share)
    moving[:, 0] = 0  # the background
    rigid = rigid * moving
    together = dice.happens(batch, layers, 1, share=config.group_share)
    together[:, :2] = 0  # there is no object behind the first
    return torch.lerp(rigid, rigid.roll(1, dims=1), together)


def _draw_waves(
    config: RenderConfig, dice: Dice, pace: Tensor, flat: Tensor, layers: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return number, phase and height of the waves, as `OwnMotion` has them."""
    shape = (len(pace), layers, _NUM_WAVES)
    length = dice.log_uniform(*shape, 1, low=50, high=400)
    length[:, 0] *= 3  # the background has longer waves than objects
    number = dice.directions(*shape) * (2 * math.pi / length)
    slope = dice.uniform(*shape, 1, high=config.deform / _NUM_WAVES)
    bends = dice.happens(len(pace), layers, 1, 1, share=config.deform_share)
    height = bends * slope * length / (2 * math.pi) * pace.clamp(max=1)[:, None, None, None]
    phase = dice.uniform(*shape, high=2 * math.pi)[:, :, None]
    return number, phase, height * dice.directions(*shape) * flat[:, None, None]


def transform(matrix: Tensor, points: Tensor) -> Tensor:
    """(..., M, 2) and (..., P, 2) -> (..., P, M); TF32 or bf16 would be too coarse here."""
    x, y = points.split(1, -1)
    from_x, from_y = matrix[..., None, :, :].unbind(-1)
    return torch.addcmul(x * from_x, y, from_y)


def rotation_and_zoom(angle: Tensor, zoom: Tensor) -> Tensor:
    """(...) angle in radians and logarithm of a factor -> (..., 2, 2)."""
    cos, sin = zoom.exp() * angle.cos(), zoom.exp() * angle.sin()
    return torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))
