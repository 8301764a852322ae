"""Renders batches of pairs with exact flow on the device: layers alternating with solid scenes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import floor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..config import RenderConfig
from ..data import FlowBatch, FlowSample
from ..errors import InputError
from ..files import Array, to_uint8
from . import kernels
from .camera import draw_fog, photograph
from .compositing import Frames, compose, find_occluded
from .dice import Dice
from .scene import draw_scene
from .shapes import shape_bank
from .solid.casting import View
from .solid.draws import Draws
from .solid.shading import shade
from .solid.world import Textures, World, draw_world, lay_out
from .textures import TextureAtlas, load_textures

_SMALLEST_SIDE = 16


@dataclass(frozen=True)
class RenderedBatch:
    """Rendered pairs with flow, validity and layers."""

    image1: Tensor
    """(B, 3, H, W) float32 in [0, 1]."""
    image2: Tensor
    flow: Tensor
    """(B, 2, H, W) float32."""
    valid: Tensor
    """(B, H, W) bool: as the settings `max_flow` and `visible_only` say."""
    layers: Tensor
    """(2B, H, W) uint8: the visible layer or thing of the scene, in frame 1, then in frame 2."""
    find_occluded: Callable[[], Tensor]
    distance: Tensor | None = None
    """(2B, H, W) of solid scenes: along the axis of the camera, in metres; 1e6 for the sky."""

    @property
    def layer(self) -> Tensor:
        """(B, H, W) uint8: the visible layer or thing in frame 1; 0 is the background."""
        return self.layers[: len(self.flow)]

    @cached_property
    def occluded(self) -> Tensor:
        """(B, H, W) bool: hidden in frame 2, or outside it. Computed on first use."""
        return self.find_occluded()

    def to_batch(self) -> FlowBatch:
        """Return the batch for training."""
        return FlowBatch(self.image1, self.image2, self.flow, self.valid)

    def to_samples(self) -> list[FlowSample]:
        """Return the pairs as samples, as if read from files."""
        image1, image2, flow = (
            tensor.permute(0, 2, 3, 1).cpu().numpy()
            for tensor in (self.image1, self.image2, self.flow)
        )
        valid, occluded = self.valid.cpu().numpy(), self.occluded.cpu().numpy()
        return [
            FlowSample(to_uint8(image1[i]), to_uint8(image2[i]), flow[i], valid[i], occluded[i])
            for i in range(len(flow))
        ]


class Renderer:
    """Renders scenes of one frame size: the same seed and step give the same batch."""

    def __init__(
        self,
        config: RenderConfig,
        size: tuple[int, int],
        textures: TextureAtlas,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        if min(size) < _SMALLEST_SIDE:
            raise InputError(
                f"frames need at least {_SMALLEST_SIDE} px a side, got {size[1]}x{size[0]}"
            )
        self.config, self.size, self.textures = config, size, textures
        self.device, self.seed = torch.device(device), seed
        self.dice = Dice(self.device, seed)
        self.shapes = shape_bank(self.device, seed, config.num_shapes, config.shape_side)

    def is_solid(self, step: int) -> bool:
        """Whether the batch of a step is one of solid scenes; all sizes of a round are alike."""
        turn, share = step // max(1, len(self.config.sizes)), self.config.solid_share
        return floor((turn + 1) * share + 1e-9) > floor(turn * share + 1e-9)

    @torch.no_grad()
    def render(self, batch: int, step: int) -> RenderedBatch:
        """Render `batch` scenes, without synchronising with the device."""
        self.dice.restart(self.seed, step)
        with torch.autocast(self.device.type, enabled=False):
            if self.is_solid(step):
                return self._render_solid(batch, step)
            scene = draw_scene(self.config, self.dice, batch, self.size, self.textures, self.shapes)
            fog = draw_fog(self.config, self.dice, batch)
            frames = compose(scene, fog, self.textures, self.size)
            occluded = partial(find_occluded, frames.flow[:batch], frames.layer)
            return self._photograph(frames, occluded)

    def _render_solid(self, batch: int, step: int) -> RenderedBatch:
        """Worlds at the times 0 and 1; layer 0 is sky, ground or room, others are things."""
        atlas, fog = self.textures, draw_fog(self.config, self.dice, batch)
        numbers = Textures(atlas.num_photos, len(atlas), self.config.procedural_share)
        worlds = draw_worlds(self.config, self.size, numbers, batch, self.seed, step)
        layout = lay_out(worlds, (0.0, 1.0), self.size).to(fog.device)
        if kernels.usable(fog.device):
            from .solid.pairs import PairCaster  # imports Triton

            caster = PairCaster(layout, atlas.mips, self.shapes, self.size)
            color, depth = caster.shade(fog)
            frames = Frames(color, caster.flow, depth, caster.layer)
            return self._photograph(frames, caster.occluded, caster.distance)
        view = View(layout, self.shapes, self.size)
        color, depth = shade(view, atlas.mips, fog)
        flow = torch.cat([view.flow(0, 1), -view.flow(1, 0)])
        frames = Frames(color, flow, depth, view.layer)
        return self._photograph(frames, view.occluded, view.sight.distance)

    def _photograph(
        self, frames: Frames, occluded: Callable[[], Tensor], distance: Tensor | None = None
    ) -> RenderedBatch:
        image1, image2 = photograph(frames, self.config, self.dice).chunk(2)
        flow = frames.flow[: len(image1)].contiguous()
        valid = torch.hypot(flow[:, 0], flow[:, 1]) <= self.config.max_flow
        if self.config.visible_only:
            valid &= ~occluded()
        return RenderedBatch(image1, image2, flow, valid, frames.layer, occluded, distance)


def draw_worlds(
    config: RenderConfig,
    size: tuple[int, int],
    textures: Textures,
    batch: int,
    seed: int,
    step: int,
) -> list[World]:
    """Draw the worlds of a step: each depends on the seed, the step and its own number only."""
    return [
        draw_world(config, Draws(f"{seed} {step} {number}"), size, textures)
        for number in range(batch)
    ]


_SEED = 1000  # no packaged weights were trained with it


def held_out_renderer(
    photos: Path | None,
    size: tuple[int, int],
    device: torch.device | str,
    *,
    config: RenderConfig | None = None,
    seed: int = _SEED,
) -> Renderer:
    """Return a renderer of held-out scenes of `size` (height, width).

    Without a folder of photographs the textures are procedural; without a config the scenes have
    the default settings.
    """
    textures = load_textures(photos, torch.device(device), seed)
    return Renderer(config or RenderConfig(), size, textures, device, seed)


QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
_SPACING = 4  # px between the pixels that are counted
_BEHIND = 1e4  # px: what is then behind the camera has a longer flow, and is not counted


@dataclass
class MotionStatistics:
    """Motion of the pixels of many scenes, separately for background and objects."""

    background: list[Array] = field(default_factory=list)
    """Vectors (N, 2), batch by batch."""
    objects: list[Array] = field(default_factory=list)
    occluded: list[float] = field(default_factory=list)
    """The share of occluded pixels in each batch."""

    def add(self, rendered: "RenderedBatch") -> None:
        """Count a batch."""
        flow = rendered.flow[..., ::_SPACING, ::_SPACING].permute(0, 2, 3, 1).cpu().numpy()
        layer = rendered.layer[..., ::_SPACING, ::_SPACING].cpu().numpy()
        stays = np.linalg.norm(flow, axis=-1) < _BEHIND
        self.background.append(flow[stays & (layer == 0)])
        self.objects.append(flow[stays & (layer > 0)])
        self.occluded.append(float(rendered.occluded.float().mean()))

    def vectors(self) -> dict[str, Array]:
        """Return the vectors of everything, of the background and of objects."""
        background, objects = np.concatenate(self.background), np.concatenate(self.objects)
        everything = np.concatenate([background, objects])
        return {"all": everything, "background": background, "objects": objects}

    def summary(self) -> dict[str, float]:
        """Return quantiles and maximum of the length in px, and the share of occluded pixels."""
        values: dict[str, float] = {}
        for name, vectors in self.vectors().items():
            length = np.linalg.norm(vectors, axis=1) if len(vectors) else np.zeros(1)
            for share in QUANTILES:
                values[f"{name}_p{share * 100:.0f}"] = float(np.quantile(length, share))
            values[f"{name}_max"] = float(length.max())
        return values | {"occluded": float(np.mean(self.occluded))}
