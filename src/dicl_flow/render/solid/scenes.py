"""Solid scenes as frames: pairs for training, and views of worlds at any times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...config import RenderConfig
from .. import kernels
from . import casting
from .draws import Draws
from .shading import MipAtlas, shade
from .world import Layout, Textures, World, draw_world, lay_out


@dataclass(frozen=True)
class SolidPairs:
    """Both frames of B scenes, stacked, frame 1 first: N = 2B."""

    color: Tensor
    """(N, 3, H, W) about [0, 1]."""
    flow: Tensor
    """(N, 2, H, W): in frame 1 the true flow, in frame 2 the motion of what is seen there."""
    depth: Tensor
    """(N, 1, H, W) in [0, 1], for fog and focus."""
    layer: Tensor
    """(N, H, W) uint8: the thing that is seen; 0 is sky, ground or room."""
    distance: Tensor
    """(N, H, W) along the axis of the camera, in metres."""
    find_occluded: Callable[[], Tensor]


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
    worlds: Sequence[World],
    textures: MipAtlas,
    shapes: Tensor,
    fog: Tensor,
    size: tuple[int, int],
) -> SolidPairs:
    """Render worlds at the times 0 and 1; `fog` (B, 4): its share before the sky, its colour."""
    layout = lay_out(worlds, (0.0, 1.0), size).to(fog.device)
    if kernels.usable(fog.device):
        from .pairs import PairCaster  # imports Triton

        caster = PairCaster(layout, textures, shapes, size)
        color, depth = caster.shade(fog)
        return SolidPairs(color, caster.flow, depth, caster.layer, caster.distance, caster.occluded)
    view = View(layout, shapes, size)
    color, depth = shade(layout, view.sight, textures, shapes, fog, size)
    flow = torch.cat([view.flow(0, 1), -view.flow(1, 0)])
    return SolidPairs(color, flow, depth, view.layer, view.sight.distance, view.occluded)


class View:
    """What is seen of worlds at the times of a layout."""

    def __init__(self, layout: Layout, shapes: Tensor, size: tuple[int, int]) -> None:
        self.layout, self.shapes, self.size = layout, shapes, size
        self.sight = casting.trace(layout, shapes, size)

    @cached_property
    def points(self) -> Tensor:
        """(N, 3, H, W) what is seen, in the coordinates of its body."""
        return casting.points_seen(self.layout, self.sight, self.size)

    @cached_property
    def layer(self) -> Tensor:
        """(N, H, W) uint8: the thing that is seen."""
        things = self.layout.skin[..., 1].repeat(len(self.layout.pose), 1)  # (N, K)
        body = self.sight.body.long()
        return things.gather(1, body.flatten(1)).view(body.shape).to(torch.uint8)

    def flow(self, start: int, end: int) -> Tensor:
        """(B, 2, H, W) from one time to another, by their numbers."""
        return casting.flow_between(self.layout, self.sight, self.points, self.size, start, end)

    def occluded(self, start: int = 0, end: int = 1) -> Tensor:
        """(B, H, W) bool: seen at one time, hidden or outside the frame at the other."""
        return casting.occluded(
            self.layout, self.sight, self.points, self.shapes, self.size, start, end
        )

    def normals(self) -> Tensor:
        """(N, 3, H, W) unit vectors in the axes of the camera, towards it."""
        return casting.normals(self.layout, self.sight, self.points, self.size)
