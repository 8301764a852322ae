"""Random draws on the device, smooth random fields, and a bank of outlines drawn with them.

An outline is a signed distance: sharp at any scale, positive inside. Shapes lie in the square
[-1, 1]² and do not touch its border. A shape is first any function that is positive inside; divided
by its slope, it is a distance near its edge, as antialiasing needs it.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import Size

_MARGIN = 0.96
QUANTILES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
# CPU generators use 32 bits of a seed; the factor keeps the steps of different seeds apart
_SEED_FACTOR, _SEED_BITS = 2_654_435_761, 0xFFFF_FFFF


class Dice:
    """Random draws that depend on a seed and a step only (on one kind of device)."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.generator = torch.Generator(device)
        self.restart(seed, 0)

    def restart(self, seed: int, step: int) -> None:
        """Start the draws of a step."""
        self.generator.manual_seed((seed * _SEED_FACTOR + step) & _SEED_BITS)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform in [low, high)."""
        return torch.empty(shape, device=self.device).uniform_(low, high, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        """Mean 0, variance 1."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def log_uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """Log-uniform in [low, high)."""
        return self.uniform(*shape, low=math.log(low), high=math.log(high)).exp()

    def mostly_small(self, *shape: int, extent: float) -> Tensor:
        """In [-extent, extent], half of the draws within an eighth of it."""
        return extent * self.uniform(*shape, low=-1.0) ** 3

    def happens(self, *shape: int, share: float) -> Tensor:
        """1.0 with the probability `share`, else 0.0."""
        return (self.uniform(*shape) < share).float()

    def strength(self, count: int, setting: tuple[float, float]) -> Tensor:
        """(N,) strength of an effect (share of scenes, largest); 0 for scenes without it."""
        share, largest = setting
        return largest * self.uniform(count) * self.happens(count, share=share)

    def integers(self, *shape: int, high: int) -> Tensor:
        """Integers in [0, high)."""
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def directions(self, *shape: int) -> Tensor:
        """Unit vectors (..., 2), uniform in direction."""
        angle = self.uniform(*shape, high=2 * math.pi)
        return torch.stack([angle.cos(), angle.sin()], -1)

    def lengths(self, *shape: int, quantiles: Sequence[float]) -> Tensor:
        """Lengths with the given 50, 75, 90, 95, 99 and 100 % quantiles, linear in between."""
        draw = self.uniform(*shape)
        result = torch.zeros_like(draw)
        ends = (0.0, *quantiles)
        for step in range(len(quantiles)):
            start, end = QUANTILES[step], QUANTILES[step + 1]
            slope = (ends[step + 1] - ends[step]) / (end - start)
            result += (draw.clamp(start, end) - start) * slope
        return result


def smooth_noise(dice: Dice, count: int, size: Size, cells: int, channels: int = 1) -> Tensor:
    """(N, C, H, W) of variance about 1, with `cells` independent values along the longer side."""
    low = [max(2, round(cells * side / max(size))) + 1 for side in size]
    noise = dice.normal(count, channels, *low)
    return F.interpolate(noise, size, mode="bicubic", align_corners=True)


def octaves(dice: Dice, count: int, size: Size, cells: int) -> Tensor:
    """(N, 1, H, W): sum of smooth noise from `cells` to about two pixels, finer detail weaker."""
    field = smooth_noise(dice, count, size, cells)
    height = 1.0
    while cells * 4 < max(size):
        cells, height = cells * 2, height * 0.6
        field = field + height * smooth_noise(dice, count, size, cells)
    return field


@lru_cache(maxsize=4)  # renderers of several frame sizes share one: it takes seconds on a CPU
@torch.inference_mode(mode=False)
def shape_bank(device: torch.device, seed: int, count: int, side: int) -> Tensor:
    """(N, 1, S, S) signed distances in units of half the square, of all kinds in turn."""
    axis = torch.linspace(-1, 1, side, device=device)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    plane = Plane(Dice(device, seed), x, y)
    share = math.ceil(count / len(_KINDS))
    kinds = torch.stack([kind(plane, share) for kind in _KINDS], 1)  # (share, kinds, S, S)
    values = kinds.flatten(0, 1)[:count]
    border = _MARGIN - torch.maximum(x.abs(), y.abs())
    slope_y, slope_x = torch.gradient(values, spacing=2 / (side - 1), dim=(1, 2))
    distance = values / torch.hypot(slope_x, slope_y).clamp_min(0.3)  # to first order
    return torch.minimum(distance, border)[:, None]


class Plane:
    """The square with its coordinates, (S, S) or (N, S, S) each, and the dice."""

    def __init__(self, dice: Dice, x: Tensor, y: Tensor) -> None:
        self.dice, self.x, self.y = dice, x, y
        self.radius, self.angle = torch.hypot(x, y), torch.atan2(y, x)
        self.size = x.shape[-2], x.shape[-1]

    def draw(self, count: int, low: float, high: float) -> Tensor:
        """(N, 1, 1) uniform."""
        return self.dice.uniform(count, 1, 1, low=low, high=high)

    def turned(self, count: int) -> tuple[Tensor, Tensor]:
        """(N, S, S) coordinates x and y with randomly rotated axes."""
        angle = self.draw(count, 0, 2 * math.pi)
        cos, sin = angle.cos(), angle.sin()
        return cos * self.x + sin * self.y, cos * self.y - sin * self.x

    def moved(self, count: int) -> "Plane":
        """Return the plane of N shapes with centres slightly off the middle."""
        x, y = self.draw(count, -0.35, 0.35), self.draw(count, -0.35, 0.35)
        return Plane(self.dice, self.x - x, self.y - y)


def _blobs(plane: Plane, count: int) -> Tensor:
    """Ellipses and irregular round shapes."""
    radius = plane.draw(count, 0.5, 0.8)
    amount = plane.draw(count, 0, 0.35)
    for frequency in range(2, 7):
        phase = plane.draw(count, 0, 2 * math.pi)
        height = amount * plane.draw(count, 0, 1) / (frequency - 1)
        radius = radius + height * (frequency * plane.angle + phase).cos()
    return radius - plane.radius


def _polygons(plane: Plane, count: int) -> Tensor:
    """Convex polygons with three to seven sides."""
    sides, start = 7, plane.draw(count, 0, 2 * math.pi)
    value = torch.full_like(plane.x, 2.0).expand(count, -1, -1)
    number = 3 + plane.dice.integers(count, 1, 1, high=sides - 2)
    for side in range(sides):
        angle = start + (side + plane.draw(count, -0.2, 0.2)) * 2 * math.pi / number
        edge = plane.draw(count, 0.3, 0.65) - angle.cos() * plane.x - angle.sin() * plane.y
        value = torch.where(side < number, torch.minimum(value, edge), value)
    return torch.minimum(value, 0.9 - plane.radius)


def _solids(plane: Plane, count: int) -> Tensor:
    return _either(plane, _blobs(plane, count), _polygons(plane, count))


def _either(plane: Plane, one: Tensor, other: Tensor) -> Tensor:
    """Choose one of two at random for each shape."""
    return torch.where(plane.draw(len(one), -1, 1) > 0, one, other)


def _curves(plane: Plane, count: int) -> Tensor:
    """Thin bars, straight or wavy."""
    x, y = plane.turned(count)
    bend = plane.draw(count, 0, 0.3) * (plane.draw(count, 1, 6) * x + plane.draw(count, 0, 6)).sin()
    width = plane.draw(count, 0.02, 0.1)
    return torch.minimum(width - (y - bend).abs(), 0.9 - x.abs())


def _branches(plane: Plane, count: int) -> Tensor:
    """Several bars that meet, like twigs."""
    fork = plane.moved(count)
    value = plane.draw(count, 0.02, 0.25) - fork.radius
    for _ in range(5):
        along, across = fork.turned(count)
        width = plane.draw(count, 0.015, 0.06) * (1.5 - along.clamp(0, 1))
        bend = plane.draw(count, -0.3, 0.3) * along**2
        value = torch.maximum(value, torch.minimum(width - (across - bend).abs(), along))
    return torch.minimum(value, 0.9 - plane.radius)


def _rings(plane: Plane, count: int) -> Tensor:
    """Outlines of blobs and polygons."""
    width = plane.draw(count, 0.03, 0.15)
    return width - (_solids(plane, count) - width).abs()


def _holes(plane: Plane, count: int) -> Tensor:
    """Blobs and polygons with round holes."""
    value = _solids(plane, count)
    for _ in range(4):
        hole = plane.moved(count).radius - plane.draw(count, 0.03, 0.25)
        value = torch.minimum(value, hole)
    return value


def _fences(plane: Plane, count: int) -> Tensor:
    """Pickets, or a lattice of crossing ones, with or without an outline."""
    x, y = plane.turned(count)
    spacing = plane.draw(count, 0.15, 0.5)
    width = spacing * plane.draw(count, 0.12, 0.35)
    pickets, rails = (width / 2 - spacing * ((c / spacing + 10).frac() - 0.5).abs() for c in (x, y))
    rails = _either(plane, rails, 0.06 - (y.abs() - 0.4).abs())
    bars = torch.maximum(pickets, rails)
    return torch.minimum(bars, torch.minimum(0.85 - x.abs(), 0.6 - y.abs()))


def _foliage(plane: Plane, count: int) -> Tensor:
    """Scattered leaves: thresholded noise inside a blob."""
    leaves = smooth_noise(plane.dice, count, plane.size, 14)[:, 0]
    return torch.minimum(0.1 * (leaves - plane.draw(count, -0.5, 0.4)), _blobs(plane, count))


def _rough(plane: Plane, count: int) -> Tensor:
    """Blobs with frayed edges: hair, grass, rock."""
    fringe = octaves(plane.dice, count, plane.size, 6)[:, 0]
    return _blobs(plane, count) + plane.draw(count, 0.02, 0.12) * fringe


def _composites(plane: Plane, count: int) -> Tensor:
    """Two shapes joined, or one cut out of the other."""
    one, other = _solids(plane, count), _solids(plane.moved(count), count)
    return _either(plane, torch.maximum(one, other), torch.minimum(one, 0.2 - other))


# kinds are as frequent in the bank as here: about a quarter is thin
_KINDS = [_blobs, _curves, _polygons, _holes, _rough, _composites, _blobs, _branches]
_KINDS += [_polygons, _rough, _fences, _holes, _blobs, _foliage, _composites, _rings]
