"""Renders pairs and clips with exact flow on the device: layers alternating with solid scenes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import floor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import Crowd, Place, RenderConfig, find_place
from ..data import FlowBatch, FlowSample
from ..errors import InputError
from ..files import Array, to_uint8
from ..ops import Size, sample_clamped, sampling_grid
from .camera import draw_fog, photograph
from .motions import transform
from .scene import Frames, Scene, draw_scene, has_kernels, node_positions, upsample
from .shapes import QUANTILES, Dice, shape_bank
from .solid import casting
from .solid.shading import shade
from .solid.things import Draws
from .solid.world import Textures, World, draw_world, lay_out
from .textures import TextureAtlas, load_textures

_LONGEST = 10_000  # frames of a clip
_SPACING = 4  # px between the pixels whose motion is counted
_BEHIND = 1e4  # px: what is then behind the camera has a longer flow, and is not counted
_SHORT = 16  # frames: what moves in a longer clip of tracks is slower in proportion
_PASSING = (
    Crowd("block", (1, 3), ahead=(1.2, 5), moving=1.0, drift=1.5),
    Crowd("paper", (1, 2), ahead=(1.2, 5), moving=1.0, drift=1.5),
    Crowd("runner", (1, 2), ahead=(2, 8), moving=1.0),
)
"""Things near the camera that hide others for a while."""


@dataclass(frozen=True)
class RenderedBatch:
    """Rendered pairs with flow, validity and layers."""

    image1: Tensor  # (B, 3, H, W) float32 in [0, 1]
    image2: Tensor
    flow: Tensor  # (B, 2, H, W) float32
    valid: Tensor  # (B, H, W) bool: as the settings `max_flow` and `occluded_weight` say
    layers: Tensor  # (2B, H, W) uint8: the visible layer or thing, in frame 1, then in frame 2
    find_occluded: Callable[[], Tensor]
    distance: Tensor | None = None  # (2B, H, W) metres along the camera's axis, 1e6: sky

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
        size: Size,
        textures: TextureAtlas,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        if min(size) < 16:
            raise InputError(f"frames need at least 16 px a side, got {size[1]}x{size[0]}")
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
        if has_kernels(fog.device):
            from .solid.color_kernels import PairCaster  # imports Triton

            caster = PairCaster(layout, atlas.mips, self.shapes, self.size)
            color, depth = caster.shade(fog)
            frames = Frames(color, caster.flow, depth, caster.layer)
            return self._photograph(frames, caster.occluded, caster.distance)
        view = casting.View(layout, self.shapes, self.size)
        color, depth = shade(view, atlas.mips, fog)
        flow = torch.cat([view.flow(0, 1), -view.flow(1, 0)])
        frames = Frames(color, flow, depth, view.layer)
        return self._photograph(frames, view.occluded, view.distance)

    def _photograph(
        self, frames: Frames, occluded: Callable[[], Tensor], distance: Tensor | None = None
    ) -> RenderedBatch:
        image1, image2 = photograph(frames, self.config, self.dice).chunk(2)
        flow = frames.flow[: len(image1)].contiguous()
        valid = torch.hypot(flow[:, 0], flow[:, 1]) <= self.config.max_flow
        if self.config.occluded_weight < 1:
            counts = self.dice.uniform(*valid.shape) < self.config.occluded_weight
            valid &= counts | ~occluded()
        return RenderedBatch(image1, image2, flow, valid, frames.layer, occluded, distance)


def compose(scene: Scene, fog: Tensor, textures: TextureAtlas, size: Size) -> Frames:
    """Compose the layers in fog (B, 4); at edges colours are mixed, flow is of the larger part."""
    if has_kernels(fog.device):
        from .kernels import compose_layers  # imports Triton

        return Frames(*compose_layers(scene, fog, textures, size))
    # in frame 2, of the nodes of frame 1, then of 2, relative to the centres: (N, D, P, 2)
    nodes = node_positions(size, fog.device).expand_as(scene.flow)
    position = torch.cat([nodes + scene.flow, nodes]).flatten(2, 3)
    position -= scene.center.repeat(2, 1, 1)[:, :, None]
    front, behind, cover = _visible_layers(scene, position, size)
    layers = torch.stack([front, behind], 1)
    seen = _look_up(scene, position, len(textures), layers)  # (N, C, 2, H, W)
    flow, place, gain, offset, depth = seen.split([2, 3, 3, 1, 1], 1)
    grid = place.permute(0, 2, 3, 4, 1).flatten(0, 1)[None]  # (1, 2N, H, W, 3)
    color = F.grid_sample(textures.images, grid, padding_mode="reflection", align_corners=False)
    color = color[0].unflatten(1, (-1, 2)).transpose(0, 1).mul_(gain).add_(offset)
    cover = cover[:, None]
    in_front = cover >= 0.5
    color, depth = (torch.lerp(part[:, :, 1], part[:, :, 0], cover) for part in (color, depth))
    thickness, tint = fog.repeat(2, 1)[..., None, None].split([1, 3], 1)
    return Frames(
        color=torch.lerp(color, tint, depth * thickness),
        flow=torch.where(in_front, flow[:, :, 0], flow[:, :, 1]),
        depth=depth,
        layer=torch.where(in_front[:, 0], front, behind),
    )


def find_occluded(flow: Tensor, layer: Tensor) -> Tensor:
    """(B, H, W) bool: the flow (B, 2, H, W) ends under a nearer layer or outside the frame.

    Where a farther layer is visible, it ends at the edge of its own. `layer` is (2B, H, W).
    """
    layer1, layer2 = (layer + 1).float().chunk(2)
    grid = sampling_grid(flow)
    seen = F.grid_sample(layer2[:, None], grid, mode="nearest", align_corners=True)  # 0 outside
    return (seen[:, 0] > layer1) | (seen[:, 0] == 0)


def _visible_layers(scene: Scene, position: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nearest layer, the first opaque one behind it, and the coverage, (N, H, W)."""
    place = transform(scene.to_outline.repeat(2, 1, 1, 1), position[:, 1:])
    frames, objects = place.shape[:2]
    place = place.unflatten(2, scene.flow.shape[2:4]).flatten(0, 1)
    grid = upsample(place.permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)
    outline = scene.outline.repeat(2, 1, 1, 1).flatten(0, 1)[:, None]
    # at least 1: inside, at most 0: outside
    edge = sample_clamped(outline, grid).view(frames, objects, *size)
    numbers = torch.arange(1, objects + 1, device=edge.device, dtype=torch.uint8).view(1, -1, 1, 1)
    front = (edge > 0).view(torch.uint8).mul_(numbers).amax(1)
    opaque = (edge >= 0.5).logical_and_(numbers != front[:, None])
    behind = opaque.view(torch.uint8).mul_(numbers).amax(1)
    index = front.long().sub_(1).clamp_(min=0)[:, None]
    return front, behind, edge.gather(1, index)[:, 0].clamp(0, 1)


def _look_up(scene: Scene, position: Tensor, textures: int, layer: Tensor) -> Tensor:
    """Return flow, texture position, colour and depth, (N, C, K, H, W), of layers (N, K, H, W)."""
    slot = (2 * scene.number[..., None] + 1) / textures - 1
    constants = torch.cat([slot, scene.gain, scene.offset, scene.depth], -1).repeat(2, 1, 1)
    constants = constants[:, :, None].expand(-1, -1, position.shape[2], -1)
    place = transform(scene.to_texture.repeat(2, 1, 1, 1), position)
    place += scene.origin.repeat(2, 1, 1)[:, :, None]
    flow = scene.flow.flatten(2, 3).repeat(2, 1, 1, 1)
    volume = torch.cat([flow, place, constants], -1).unflatten(2, scene.flow.shape[2:4])
    volume = volume.permute(0, 4, 1, 2, 3)
    # 1 + a power of two layers: then scaling the index to [-1, 1] is exact
    power = 1 << (volume.shape[2] - 2).bit_length()
    volume = F.pad(volume, (0, 0, 0, 0, 0, power + 1 - volume.shape[2]))
    z = layer.float().mul_(2 / power).sub_(1)
    y, x = (torch.linspace(-1, 1, side, device=z.device) for side in z.shape[-2:])
    position = torch.stack([x.expand_as(z), y[:, None].expand_as(z), z], -1)
    return F.grid_sample(volume, position, align_corners=True)


def draw_worlds(
    config: RenderConfig, size: Size, textures: Textures, batch: int, seed: int, step: int
) -> list[World]:
    """Draw the worlds of a step: each depends on the seed, the step and its own number only."""
    return [
        draw_world(config, Draws(f"{seed} {step} {number}"), size, textures)
        for number in range(batch)
    ]


def held_out_renderer(
    photos: Path | None,
    size: Size,
    device: torch.device | str,
    *,
    config: RenderConfig | None = None,
    seed: int = 1000,  # no packaged weights were trained with it
) -> Renderer:
    """Return a renderer of held-out scenes; without photographs the textures are procedural."""
    textures = load_textures(photos, torch.device(device), seed)
    return Renderer(config or RenderConfig(), size, textures, device, seed)


class Clip:
    """One world at the times 0, 1, 2 …: frames, flow and occlusion between any two, and tracks."""

    def __init__(
        self,
        config: RenderConfig,
        size: Size,
        textures: TextureAtlas,
        kind: str | Place,
        num_frames: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Draw a world of a `kind` of place; `size` is (height, width)."""
        if isinstance(kind, str):
            find_place(kind)
        if not 1 <= num_frames <= _LONGEST:
            raise InputError(f"a clip must have 1 to {_LONGEST} frames, got {num_frames}")
        self.config, self.size, self.textures = config, size, textures
        self.num_frames, self.seed = num_frames, seed
        numbers = Textures(textures.num_photos, len(textures), config.procedural_share)
        world = draw_world(config, Draws(f"clip {seed}"), size, numbers, kind)
        layout = lay_out([world], [float(time) for time in range(num_frames)], size).to(device)
        shapes = shape_bank(torch.device(device), 0, config.num_shapes, config.shape_side)
        self.view = casting.View(layout, shapes, size)

    @torch.no_grad()
    def frames(self) -> Tensor:
        """(T, 3, H, W) in [0, 1], with the effects of a camera."""
        view, dice = self.view, Dice(self.view.shapes.device, self.seed)
        color, depth = shade(view, self.textures.mips, draw_fog(self.config, dice, 1))
        flows = [self.flow(time, time + 1) for time in range(self.num_frames - 1)]
        flow = torch.stack([*flows, flows[-1]]) if flows else torch.zeros_like(color[:, :2])
        frames = Frames(color, flow, depth, view.layer)
        return photograph(frames, self.config, dice, self.num_frames)

    def flow(self, start: int, end: int) -> Tensor:
        """(2, H, W) from one frame to another; 1e5 px and more for what is behind the camera."""
        return self.view.flow(start, end)[0]

    def valid(self, flow: Tensor) -> Tensor:
        """(H, W) bool: flow that is not longer than the settings allow."""
        return flow.norm(dim=0) <= self.config.max_flow

    def occluded(self, start: int, end: int) -> Tensor:
        """(H, W) bool: seen in one frame, hidden in or outside another."""
        return self.view.occluded(start, end)[0]

    def tracks(self, num_points: int) -> tuple[Tensor, Tensor]:
        """(P, T, 2) positions in px, and (P, T) whether hidden, of points of random frames."""
        draws, view = Draws(f"tracks {self.seed}"), self.view
        most = (self.num_frames, *self.size)
        drawn = [[draws.randrange(side) for side in most] for _ in range(num_points)]
        time, row, column = torch.tensor(drawn, device=view.shapes.device).T
        body, q = view.body[time, row, column], view.points[time, :, row, column].T
        places, hidden = [], []
        for end in range(self.num_frames):
            moved = torch.empty_like(q)
            for start in time.unique().tolist():
                seen = time == start
                moved[:, seen] = casting.move(view.layout, 0, body[seen], q[:, seen], start, end)
            place = casting.project(moved, view.layout.scene[end, 0, 12], self.size)
            unseen = casting.hidden(view.layout, 0, end, body, moved, view.shapes)
            places.append(place.T)
            hidden.append(unseen | casting.is_outside(place, self.size))
        return torch.stack(places, 1), torch.stack(hidden, 1)


def tracking_clip(
    size: Size,
    textures: TextureAtlas,
    kind: str,
    num_frames: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    config: RenderConfig | None = None,
) -> Clip:
    """Return a clip to judge tracks by: things hide others, leave and return.

    Worlds are drawn for the motion between two frames. So in a long clip the motion is slower:
    otherwise the camera would pass everything in a few frames.
    """
    config = config or RenderConfig()
    motion = config.motion * min(1.0, _SHORT / num_frames)
    first, *others = find_place(kind).crowds  # the first one also says how far away things are
    camera = {name: share for name, share in find_place(kind).camera.items() if name != "stereo"}
    place = replace(find_place(kind), crowds=(first, *_PASSING, *others), camera=camera)
    config = replace(config, motion=motion, tiny_share=config.tiny_share / 3)
    return Clip(config, size, textures, place, num_frames, device, seed)


@dataclass
class MotionStatistics:
    """Motion of the pixels of many scenes, separately for background and objects."""

    background: list[Array] = field(default_factory=list)  # vectors (N, 2), batch by batch
    objects: list[Array] = field(default_factory=list)
    occluded: list[float] = field(default_factory=list)  # share of the pixels of each batch

    def add(self, rendered: RenderedBatch) -> None:
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
            for share in QUANTILES[1:-1]:
                values[f"{name}_p{share * 100:.0f}"] = float(np.quantile(length, share))
            values[f"{name}_max"] = float(length.max())
        return values | {"occluded": float(np.mean(self.occluded))}
