"""Clips that look like footage of other cameras and places, with exact flow.

Thermal, underwater, endoscopic, fog and night are looks: a solid clip is drawn without the effects
of a camera, and its colours, distances and things make the picture. Particle images are in `fluid`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import Crowd, Place, RenderConfig, find_place
from ..config.render import EFFECTS
from ..data.augmentation import LUMA
from ..errors import check_name
from ..ops import Size
from .camera import draw_fog
from .fluid import FluidClip
from .renderer import Clip
from .shapes import Dice, smooth_noise
from .solid.casting import rays
from .solid.shading import shade
from .textures import TextureAtlas

_TUBE = Place(
    crowds=(Crowd("fold", (9, 16), ahead=(0.8, 6), moving=0.5, drift=0.25),),
    camera={"walk": 0.5, "orbit": 0.3, "drive": 0.2},
    focal=(0.5, 0.8),
    height=(0.5, 0.9),
    pitch=0.15,
    speed=0.06,
    ground=False,
    room=((0.7, 1.1), (1.3, 2.0), (3.0, 9.0)),
    sun=0.0,
)
_FARTHEST = 200.0  # metres; the sky counts as this far away


@dataclass(frozen=True)
class Shot:
    """What a look is made from: T frames of one clip."""

    color: Tensor  # (T, 3, H, W) in [0, 1], without the effects of a camera
    distance: Tensor  # (T, 1, H, W) metres
    layer: Tensor  # (T, H, W): the thing that is seen
    position: Tensor  # (T, 3, H, W) metres, relative to the camera
    dice: Dice

    @property
    def gray(self) -> Tensor:
        """(T, 1, H, W)."""
        parts = zip(LUMA, self.color.split(1, 1), strict=True)
        return torch.stack([weight * part for weight, part in parts]).sum(0)

    @property
    def median_distance(self) -> Tensor:
        """() over the clip; the sky counts as far away."""
        return self.distance.median()

    def draw(self, low: float, high: float) -> float:
        """A number for the whole clip."""
        return float(self.dice.uniform(1, low=low, high=high))

    def noise(self, sigma: float, channels: int = 3) -> Tensor:
        """(T, C, H, W) independent pixels."""
        frames, _, height, width = self.color.shape
        return sigma * self.dice.normal(frames, channels, height, width)


Look = Callable[[Shot], Tensor]


def thermal(shot: Shot) -> Tensor:
    """Grey: things have temperatures, little texture, sometimes hot is dark; noise that stays."""
    frames, _, height, width = shot.color.shape
    heat = shot.dice.normal(256)[shot.layer.long()][:, None]
    sky = shot.distance >= _FARTHEST
    signal = torch.where(sky, -1.5, heat) + shot.draw(0.8, 1.6) * (shot.gray - shot.gray.mean())
    signal = _blur(signal, 1.2)  # the detector has fewer pixels than the picture
    signal = (signal - signal.mean()) / signal.std().clamp(min=1e-3)
    polarity = 1.0 if shot.draw(0, 1) < 0.5 else -1.0
    picture = 0.45 + polarity * shot.draw(0.06, 0.14) * signal
    columns = shot.draw(0.004, 0.012) * shot.dice.normal(1, 1, 1, width)
    fixed = shot.draw(0.004, 0.01) * shot.dice.normal(1, 1, height, width)
    drift = 0.01 * shot.dice.normal(frames, 1, 1, 1)
    picture = picture + columns + fixed + drift + shot.noise(shot.draw(0.008, 0.02), 1)
    return picture.repeat(1, 3, 1, 1)


def underwater(shot: Shot) -> Tensor:
    """Red is absorbed first, water scatters light of its own colour, particles drift past."""
    color, distance = shot.color, shot.distance / shot.median_distance
    absorbed = _channels(shot, (1.3, 0.35, 0.25)) * shot.draw(0.7, 1.3)
    water = _channels(shot, (0.04, 0.34, 0.42) if shot.draw(0, 1) < 0.5 else (0.08, 0.36, 0.28))
    murky = shot.draw(0.5, 1.0)
    height = torch.linspace(1.25, 0.6, color.shape[2], device=color.device)[:, None]  # from above
    direct = color * (-absorbed * (0.4 + distance)).exp()
    through = (-murky * distance).exp()
    scattered = torch.lerp(_blur(direct, 2.5), direct, through)  # far things are blurred
    picture = scattered * through.clamp(min=0.05) + (1 - through) * water * height
    return picture + _particles(shot) + shot.noise(shot.draw(0.008, 0.02))


def endoscopic(shot: Shot) -> Tensor:
    """Wet tissue by a light beside the camera, through a round opening."""
    near, detail = shot.median_distance, _detail(shot.gray)
    vessels = (detail < -0.06).float()
    red = 0.62 + 0.25 * shot.gray + 0.5 * detail
    tissue = torch.cat([red + 0.1, 0.5 * red - 0.1 * vessels, 0.42 * red - 0.06 * vessels], 1)
    tissue = tissue * (0.85 + 0.3 * shot.dice.uniform(256)[shot.layer.long()][:, None])
    normal, view = _normals(shot.position, detail), F.normalize(shot.position, dim=1)
    facing = (normal * view).sum(1, keepdim=True).abs()
    light = (0.35 * near / shot.distance.clamp(min=1e-3)).square()
    light = 1.15 * light / (0.07 + light)  # the exposure is automatic
    shine = facing.clamp(0, 1) ** 40
    picture = light * (tissue * (0.3 + 0.7 * facing) + 0.7 * shine)
    opening = round_opening((picture.shape[2], picture.shape[3]), picture.device)
    return (picture + shot.noise(0.012)) * opening


def fog(shot: Shot) -> Tensor:
    """Contrast falls with distance to almost nothing; light of the fog is uneven and grey."""
    height, width = shot.color.shape[2:]
    through = (-shot.draw(0.8, 1.5) * shot.distance / shot.median_distance).exp()
    uneven = smooth_noise(shot.dice, 1, (height, width), 3)
    air = shot.draw(0.55, 0.8) * (1 + 0.06 * uneven)
    air = air * _channels(shot, (0.98, 1.0, 1.02))
    soft = torch.lerp(_blur(shot.color, 1.5), shot.color, through)
    flat = torch.lerp(air.expand_as(soft), 0.25 + 0.6 * soft, through)
    return flat + shot.noise(shot.draw(0.005, 0.015))


def night(shot: Shot) -> Tensor:
    """Little light, from the camera and from some bright places; much noise, few colours."""
    gray, distance = shot.gray, shot.distance / shot.median_distance
    dim = torch.lerp(gray.expand_as(shot.color), shot.color, 0.5) * _channels(
        shot, (0.8, 0.9, 1.15)
    )
    lamp = shot.draw(0.1, 0.4) / (0.3 + distance) ** 2
    bright = (shot.color.amax(1, keepdim=True) - 0.85).clamp(min=0) * 5 * (distance < 20)
    glow = _blur(bright, 4.0) * 0.4 + bright * 0.5
    light = (shot.draw(0.05, 0.1) + lamp.clamp(max=0.6)) * dim + 0.35 * glow * _channels(
        shot, (1.0, 0.85, 0.55)
    )
    photons = shot.draw(60, 160)  # of a white pixel
    amplified = light + shot.noise(1.0) * ((light.clamp(min=0) + 0.02) / photons).sqrt()
    return amplified.clamp(0, 1).pow(0.6)


def round_opening(size: Size, device: torch.device | str = "cpu") -> Tensor:
    """(H, W) bool: what an endoscope shows."""
    height, width = size
    x = torch.arange(width, device=device) - (width - 1) / 2
    y = torch.arange(height, device=device)[:, None] - (height - 1) / 2
    return torch.hypot(x, y) <= 0.56 * min(size) + 0.04 * max(size)


@dataclass(frozen=True)
class Domain:
    """A look, and the kinds of places it is shown in."""

    look: Look
    places: tuple[str | Place, ...]
    motion: float = 0.5
    """Factor of the motion."""


LOOKS: Mapping[str, Domain] = {
    "thermal": Domain(thermal, ("street", "landscape")),
    "underwater": Domain(underwater, ("landscape", "floating")),
    "endoscopic": Domain(endoscopic, (_TUBE,), motion=0.7),
    "fog": Domain(fog, ("motorway", "street")),
    "night": Domain(night, ("street", "motorway")),
}
DOMAINS = (*LOOKS, "fluid")


class DomainClip(Clip):
    """A clip of solid things with the look of a domain."""

    def __init__(
        self,
        name: str,
        size: Size,
        textures: TextureAtlas,
        num_frames: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
        config: RenderConfig | None = None,
    ) -> None:
        self.domain = LOOKS[name]
        config = config or RenderConfig()
        plain: dict[str, Any] = dict.fromkeys(EFFECTS, (0.0, 0.0))
        config = replace(config, motion=config.motion * self.domain.motion, tiny_share=0.0, **plain)
        config = replace(config, world=replace(config.world, reflection=(0.0, 0.0)))
        kind = self.domain.places[seed % len(self.domain.places)]
        place = find_place(kind) if isinstance(kind, str) else kind
        # the camera always moves; a stereo pair is no clip
        camera = {way: share for way, share in place.camera.items() if way != "stereo"}
        camera = {way: share / sum(camera.values()) for way, share in camera.items()}
        place = replace(place, camera=camera)
        super().__init__(config, size, textures, place, num_frames, device, seed)
        is_round = self.domain.look is endoscopic
        device = self.view.shapes.device
        self.shown = round_opening(size, device) if is_round else None

    @torch.no_grad()
    def shot(self) -> Shot:
        """What the frames are made from, without the look."""
        view, dice = self.view, Dice(self.view.shapes.device, self.seed)
        color, _ = shade(view, self.textures.mips, draw_fog(self.config, dice, 1))
        distance = view.distance[:, None].clamp(max=_FARTHEST)
        along = torch.stack([rays(scene[0], self.size) for scene in view.layout.scene])
        return Shot(color.clamp(0, 1), distance, view.layer, along * distance, dice)

    @torch.no_grad()
    def frames(self) -> Tensor:
        """(T, 3, H, W) in [0, 1]."""
        return self.domain.look(self.shot()).clamp(0, 1)

    def valid(self, flow: Tensor) -> Tensor:
        """(H, W) bool: what is seen and not longer than the settings allow."""
        valid = super().valid(flow)
        return valid if self.shown is None else valid & self.shown

    def occluded(self, start: int, end: int) -> Tensor:
        """(H, W) bool: hidden or outside the picture in the other frame."""
        hidden = super().occluded(start, end)
        if self.shown is None:
            return hidden
        height, width = self.size
        x, y = self.flow(start, end).round()
        x = (x + torch.arange(width, device=x.device)).clamp(0, width - 1).long()
        y = (y + torch.arange(height, device=y.device)[:, None]).clamp(0, height - 1).long()
        return hidden | ~self.shown[y, x]


def domain_clip(
    name: str,
    size: Size,
    textures: TextureAtlas,
    num_frames: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    config: RenderConfig | None = None,
) -> Clip | FluidClip:
    """Return a clip of one of `DOMAINS`; `size` is (height, width)."""
    check_name("domain", name, DOMAINS)
    if name == "fluid":
        return FluidClip(size, num_frames, device, seed, config)
    return DomainClip(name, size, textures, num_frames, device, seed, config)


def _channels(shot: Shot, values: tuple[float, float, float]) -> Tensor:
    return torch.tensor(values, device=shot.color.device)[:, None, None]


def _blur(picture: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of (N, C, H, W); the border is repeated."""
    radius = min(round(3 * sigma), min(picture.shape[-2:]) - 1)
    x = torch.arange(-radius, radius + 1, device=picture.device, dtype=picture.dtype)
    taps = (-0.5 * (x / sigma) ** 2).exp()
    taps = (taps / taps.sum()).expand(picture.shape[1], 1, 1, -1)
    padded = F.pad(picture, [radius] * 4, mode="replicate")
    across = F.conv2d(padded, taps, groups=picture.shape[1])
    return F.conv2d(across, taps.transpose(2, 3), groups=picture.shape[1])


def _detail(gray: Tensor) -> Tensor:
    """What is finer than some pixels."""
    return gray - _blur(gray, 4.0)


def _normals(position: Tensor, relief: Tensor) -> Tensor:
    """(T, 3, H, W) of the surfaces, which are rough where the texture is."""
    across, down = (torch.gradient(position, dim=axis)[0] for axis in (3, 2))
    normal = F.normalize(torch.linalg.cross(across, down, dim=1), dim=1)
    bump_x, bump_y = (torch.gradient(_blur(relief, 1.0), dim=axis)[0] for axis in (3, 2))
    rough = torch.cat([bump_x, bump_y, torch.zeros_like(bump_x)], 1)
    return F.normalize(normal + 2.5 * rough, dim=1)


def _particles(shot: Shot) -> Tensor:
    """(T, 1, H, W) bright specks near the camera, which drift and are out of focus."""
    frames, _, height, width = shot.color.shape
    dice, count = shot.dice, round(shot.draw(30, 90) * height * width / 2e5) + 3
    start = dice.uniform(count, 2) * torch.tensor([width, height], device=shot.color.device)
    velocity = dice.normal(1, 2) * 2 + dice.normal(count, 2) * 1.5
    radius = dice.log_uniform(count, low=0.6, high=3.0)
    bright = dice.log_uniform(count, low=0.05, high=0.35)
    x = torch.arange(width, device=shot.color.device)
    y = torch.arange(height, device=shot.color.device)
    pictures = []
    for time in range(frames):
        place = start + time * velocity
        column = (-0.5 * ((x - place[:, :1]) / radius[:, None]) ** 2).exp()  # (N, W)
        row = (-0.5 * ((y - place[:, 1:]) / radius[:, None]) ** 2).exp()
        pictures.append((bright[:, None] * row).T @ column)
    return torch.stack(pictures)[:, None]
