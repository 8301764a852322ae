"""Solid scenes as frames: pairs for training, and views of worlds at any times."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ...config import RenderConfig
from .. import kernels
from ..compositing import Frames
from . import casting
from .draws import Draws
from .shading import MipAtlas, shade
from .world import Layout, Textures, World, draw_world, lay_out


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


def see_pairs(
    worlds: Sequence[World], textures: MipAtlas, shapes: Tensor, fog: Tensor, size: tuple[int, int]
) -> tuple[Frames, Tensor, Callable[[], Tensor]]:
    """Render worlds at the times 0 and 1; `fog` (B, 4): its share before the sky, its colour.

    The layer of the frames is the thing that is seen; 0 is sky, ground or room. With them come the
    distance (N, H, W) along the axis of the camera, in metres, and a function that finds what is
    occluded.
    """
    layout = lay_out(worlds, (0.0, 1.0), size).to(fog.device)
    if kernels.usable(fog.device):
        from .pairs import PairCaster  # imports Triton

        caster = PairCaster(layout, textures, shapes, size)
        color, depth = caster.shade(fog)
        frames = Frames(color, caster.flow, depth, caster.layer)
        return frames, caster.distance, caster.occluded
    view = View(layout, shapes, size)
    color, depth = shade(layout, view.sight, textures, shapes, fog, size)
    flow = torch.cat([view.flow(0, 1), -view.flow(1, 0)])
    return Frames(color, flow, depth, view.layer), view.sight.distance, view.occluded


class View:
    """What is seen of worlds at the times of a layout."""

    def __init__(self, layout: Layout, shapes: Tensor, size: tuple[int, int]) -> None:
        self.layout, self.shapes, self.size = layout, shapes, size
        self.sight = casting.trace(layout, shapes, size)

    @cached_property
    def points(self) -> Tensor:
        """(N, 3, H, W) what is seen, in the coordinates of its body."""
        frames = []
        for number, body in enumerate(self.sight.body):
            time, world = divmod(number, self.layout.batch)
            rows = self.layout.pose[time, world, :, :12].T.contiguous()
            pose = rows.index_select(1, body.long().flatten()).view(12, *self.size)
            length = torch.where(body == 0, 1.0, self.sight.distance[number])
            directions = casting.rays(self.layout.scene[time, world], self.size)
            along = casting.turn_each(pose[:9], directions)
            frames.append(torch.where(body == 0, 0.0, pose[9:12]) + length * along)
        return torch.stack(frames)

    @cached_property
    def layer(self) -> Tensor:
        """(N, H, W) uint8: the thing that is seen."""
        things = self.layout.skin[..., 1].repeat(len(self.layout.pose), 1)  # (N, K)
        body = self.sight.body.long()
        return things.gather(1, body.flatten(1)).view(body.shape).to(torch.uint8)

    def flow(self, start: int, end: int) -> Tensor:
        """(B, 2, H, W) from one time to another, by their numbers."""
        q = self.points
        y, x = (torch.arange(side, device=q.device, dtype=q.dtype) for side in self.size)
        here = torch.stack([x.expand(self.size), y[:, None].expand(self.size)])
        return torch.stack([place - here for *_, place in self._moved(start, end)])

    def occluded(self, start: int = 0, end: int = 1) -> Tensor:
        """(B, H, W) bool: seen at one time, hidden or outside the frame at the other."""
        found = []
        for world, body, moved, place in self._moved(start, end):
            hidden = casting.hidden(self.layout, world, end, body, moved, self.shapes)
            found.append(casting.is_outside(place, self.size) | hidden)
        return torch.stack(found)

    def _moved(self, start: int, end: int) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield each world, the bodies seen at `start`, where their points are at `end`, in px."""
        for world in range(self.layout.batch):
            frame = start * self.layout.batch + world
            body = self.sight.body[frame]
            moved = casting.move(self.layout, world, body, self.points[frame], start, end)
            focal = self.layout.scene[end, world, 12]
            yield world, body, moved, casting.project(moved, focal, self.size)

    def normals(self) -> Tensor:
        """(N, 3, H, W) unit vectors in the axes of the camera, towards it; also of the sky."""
        frames = []
        for number, q in enumerate(self.points):
            time, world = divmod(number, self.layout.batch)
            body = self.sight.body[number].long()
            matrix = self.layout.pose[time, world, :, :9][body].movedim(-1, 0)
            form = self.layout.skin[world, :, 0][body]
            directions = casting.rays(self.layout.scene[time, world], self.size)
            frames.append(casting.normals(matrix, form, q, directions))
        return torch.stack(frames)
