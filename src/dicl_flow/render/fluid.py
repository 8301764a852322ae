"""Particle images of a fluid: dots that a smooth velocity field carries, with exact flow.

The field is a sum of waves and does not change with time. It repeats at twice the sides of the
frame, and nothing is compressed, so that dots stay evenly spread.
"""

import math

import torch
from torch import Tensor

from ..config import RenderConfig
from ..errors import InputError
from ..ops import Size
from .shapes import Dice

_WAVES = 24
_LONGEST = 10_000  # frames of a clip
_STEPS = 4  # of the integration, per frame
_UNIT = 2.0**24  # of brightness in whole numbers
_REACH = 5  # px: how far a dot is drawn
_LOST = 0.04  # share of dots that leave the sheet of light from one frame to the next
_SPEED = (1.5, 6.0)  # px per frame, root mean square


class FluidClip:
    """Dots in a flowing fluid: the same interface as `Clip`."""

    def __init__(
        self,
        size: Size,
        num_frames: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
        config: RenderConfig | None = None,
    ) -> None:
        if not 1 <= num_frames <= _LONGEST:
            raise InputError(f"a clip must have 1 to {_LONGEST} frames, got {num_frames}")
        self.config, self.size = config or RenderConfig(), size
        self.num_frames, self.seed = num_frames, seed
        self.dice = Dice(torch.device(device), seed)
        self.period = 2 * torch.tensor([size[1], size[0]], device=device)
        self._draw_field()
        self._draw_dots()

    def _draw_field(self) -> None:
        """Waves of the stream function: (2, K) whole numbers per period, (K,) heights, phases."""
        dice = self.dice
        self.waves = dice.integers(2, _WAVES, high=13).float() - 6
        steepness = self.waves.square().sum(0).clamp(min=1)
        self.heights = dice.normal(_WAVES) / steepness ** float(dice.uniform(1, low=0.6, high=1.0))
        self.phases = dice.uniform(_WAVES, high=2 * math.pi)
        mean = 0.5 * dice.normal(1, 2)
        self.mean, self.scale = torch.zeros_like(mean), 1.0
        sample = self._positions().flatten(1).T[:: max(1, math.prod(self.size) // 4096)]
        speed = float(self._velocity(sample).square().sum(1).mean().sqrt())
        wanted = float(dice.log_uniform(1, low=_SPEED[0], high=_SPEED[1])) * self.config.motion
        self.scale = wanted / max(speed, 1e-6)
        self.mean = mean * wanted

    def _draw_dots(self) -> None:
        dice, (height, width) = self.dice, self.size
        density = float(dice.log_uniform(1, low=0.015, high=0.05))  # dots per px
        count = max(8, round(density * 4 * height * width))
        self.dots = dice.uniform(count, 2) * self.period
        self.radius = dice.uniform(count, low=0.6, high=1.2)
        self.bright = dice.log_uniform(count, low=0.2, high=0.9)
        # when each leaves the sheet of light, and enters it
        life = torch.log(dice.uniform(count).clamp(min=1e-6)) / math.log(1 - _LOST)
        self.first = dice.uniform(count, low=-1 / _LOST, high=self.num_frames)
        self.last = self.first + life.clamp(min=2)
        self.first = torch.where(dice.uniform(count) < 0.5, -math.inf, self.first)

    def _velocity(self, position: Tensor) -> Tensor:
        """(P, 2) px per frame at positions (P, 2): across the slope of the stream function."""
        unit = 2 * math.pi / self.period
        phase = (position * unit) @ self.waves + self.phases
        slope = phase.cos() * self.heights
        x, y = ((self.waves[axis] * unit[axis] * slope).sum(1) for axis in (0, 1))
        return self.mean + self.scale * torch.stack([y, -x], 1)

    def carry(self, position: Tensor, frames: float) -> Tensor:
        """(P, 2) where the fluid takes positions in so many frames; negative: where from."""
        steps = max(1, math.ceil(abs(frames) * _STEPS))
        step = frames / steps
        for _ in range(steps):
            one = self._velocity(position)
            two = self._velocity(position + step / 2 * one)
            three = self._velocity(position + step / 2 * two)
            four = self._velocity(position + step * three)
            position = position + step / 6 * (one + 2 * two + 2 * three + four)
        return position

    @torch.no_grad()
    def frames(self) -> Tensor:
        """(T, 3, H, W) in [0, 1]."""
        dice, place, pictures = Dice(self.dice.device, self.seed + 1), self.dots, []
        background = float(dice.uniform(1, low=0.02, high=0.12))
        sigma = float(dice.uniform(1, low=0.01, high=0.03))
        for time in range(self.num_frames):
            lit = (self.first <= time) & (time <= self.last)
            picture = background + self._draw(place.remainder(self.period), self.bright * lit)
            pictures.append(picture + sigma * dice.normal(*self.size))
            place = self.carry(place, 1)
        return torch.stack(pictures)[:, None].repeat(1, 3, 1, 1).clamp(0, 1)

    def _draw(self, place: Tensor, bright: Tensor) -> Tensor:
        """(H, W): Gaussian dots, added in whole numbers: the same sum in any order."""
        height, width = self.size
        picture = torch.zeros(height * width, dtype=torch.int64, device=place.device)
        corner = place.floor()
        for down in range(-_REACH, _REACH + 1):
            for across in range(-_REACH, _REACH + 1):
                x, y = corner[:, 0] + across, corner[:, 1] + down
                away = (x - place[:, 0]) ** 2 + (y - place[:, 1]) ** 2
                value = bright * (-away / (2 * self.radius**2)).exp()
                inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
                number = torch.where(inside, y * width + x, 0).long()
                picture.index_add_(0, number, (value * inside * _UNIT).round().long())
        return picture.view(height, width) / _UNIT

    def _positions(self) -> Tensor:
        """(2, H, W) of all pixels."""
        height, width = self.size
        device = self.dice.device
        x = torch.arange(width, device=device, dtype=torch.float32).expand(height, width)
        y = torch.arange(height, device=device, dtype=torch.float32)[:, None].expand(height, width)
        return torch.stack([x, y])

    def flow(self, start: int, end: int) -> Tensor:
        """(2, H, W) from one frame to another."""
        here = self._positions()
        there = self.carry(here.flatten(1).T, end - start)
        return there.T.unflatten(1, self.size) - here

    def valid(self, flow: Tensor) -> Tensor:
        """(H, W) bool: flow that is not longer than the settings allow."""
        return flow.norm(dim=0) <= self.config.max_flow

    def occluded(self, start: int, end: int) -> Tensor:
        """(H, W) bool: outside the other frame; nothing hides anything."""
        x, y = self._positions() + self.flow(start, end)
        height, width = self.size
        return (x < 0) | (x > width - 1) | (y < 0) | (y > height - 1)

    def tracks(self, num_points: int) -> tuple[Tensor, Tensor]:
        """(P, T, 2) positions in px, and (P, T) whether outside, of points of random frames."""
        dice = Dice(self.dice.device, self.seed + 2)
        sides = torch.tensor([self.size[1] - 1, self.size[0] - 1], device=dice.device)
        drawn = dice.uniform(num_points, 2) * sides
        first = dice.integers(num_points, high=self.num_frames)
        places = torch.empty(num_points, self.num_frames, 2, device=dice.device)
        for start in first.unique().tolist():
            for end in range(self.num_frames):
                chosen = first == start
                places[chosen, end] = self.carry(drawn[chosen], end - start)
        return places, ((places < 0) | (places > sides)).any(2)
