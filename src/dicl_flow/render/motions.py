"""The motion of camera and layers: smooth functions from positions in frame 1 to displacements."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import RenderConfig
from .dice import Dice
from .space import Space

_NUM_WAVES = 2


@dataclass(frozen=True)
class Camera:
    """The motion of the background under a moving camera: a homography about the frame centre."""

    pivot: Tensor
    """(2,) the centre of the frame."""
    linear: Tensor
    """(B, 1, 2, 2) rotation and zoom."""
    shift: Tensor
    """(B, 1, 1, 2)."""
    perspective: Tensor
    """(B, 1, 1, 2) change of scale per pixel."""

    def flow(self, points: Tensor, space: Space | None = None) -> Tensor:
        """(B, D, P, 2) positions -> (B, D, P, 2) displacements."""
        offset = points - self.pivot
        moved = transform(self.linear, offset) + self.shift
        depth = 1 + (offset * self.perspective).sum(-1, keepdim=True)
        if space is not None:  # x + t / Z: near layers move more
            sideways, forward = (space.inverse_depth(offset) * space.travel).split([2, 1], -1)
            moved, depth = moved + sideways, depth - forward
        return moved / depth.clamp_min(0.2) - offset


@dataclass(frozen=True)
class OwnMotion:
    """The motion of D layers in addition to that of the camera."""

    center: Tensor
    """(B, D, 2) centre of rotation, in frame 1."""
    linear: Tensor
    """(B, D, 2, 2) rotation and zoom."""
    shift: Tensor
    """(B, D, 2)."""
    wave_number: Tensor
    """(B, D, N, 2) of the waves that deform the layer, in radians per pixel."""
    wave_phase: Tensor
    """(B, D, 1, N)."""
    wave_height: Tensor
    """(B, D, N, 2) in pixels."""

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
        return replace(
            self,
            linear=torch.lerp(still, self.linear, moving[..., None]),
            shift=self.shift * moving,
            wave_height=self.wave_height * moving[..., None],
        )


def draw_pace(config: RenderConfig, dice: Dice, batch: int, size: tuple[int, int]) -> Tensor:
    """(B,) factor of all motion of a scene: mostly 1, sometimes small, large or 0."""
    kind = dice.uniform(batch)
    tiny = dice.log_uniform(batch, low=0.03, high=0.3)
    large = dice.uniform(batch, low=1.0, high=config.large_factor)
    pace = torch.where(kind > 1 - config.large_share, large, 1.0)
    pace = config.motion_in(size) * torch.where(kind < config.tiny_share, tiny, pace)
    if config.still_scenes:
        pace = pace * (1 - dice.happens(batch, share=config.still_scenes))
    return pace


def draw_camera(
    config: RenderConfig, dice: Dice, pace: Tensor, flat: Tensor, size: tuple[int, int]
) -> Camera:
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
        center=torch.zeros_like(shift),
        linear=rotation_and_zoom(rigid[..., 2], rigid[..., 3]),
        shift=rigid[..., :2],
        **_draw_waves(config, dice, pace, flat, layers),
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
) -> dict[str, Tensor]:
    shape = (len(pace), layers, _NUM_WAVES)
    length = dice.log_uniform(*shape, 1, low=50, high=400)
    length[:, 0] *= 3  # the background has longer waves than objects
    number = dice.directions(*shape) * (2 * math.pi / length)
    slope = dice.uniform(*shape, 1, high=config.deform / _NUM_WAVES)
    bends = dice.happens(len(pace), layers, 1, 1, share=config.deform_share)
    height = bends * slope * length / (2 * math.pi) * pace.clamp(max=1)[:, None, None, None]
    return {
        "wave_number": number,
        "wave_phase": dice.uniform(*shape, high=2 * math.pi)[:, :, None],
        "wave_height": height * dice.directions(*shape) * flat[:, None, None],
    }


def transform(matrix: Tensor, points: Tensor) -> Tensor:
    """(..., M, 2) and (..., P, 2) -> (..., P, M), in full precision.

    A matrix product may be computed in TF32 or bf16, which is too coarse for positions.
    """
    x, y = points.split(1, -1)
    from_x, from_y = matrix[..., None, :, :].unbind(-1)
    return torch.addcmul(x * from_x, y, from_y)


def rotation_and_zoom(angle: Tensor, zoom: Tensor) -> Tensor:
    """(...) angle in radians and logarithm of a factor -> (..., 2, 2)."""
    cos, sin = zoom.exp() * angle.cos(), zoom.exp() * angle.sin()
    return torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))
