"""Solid scenes as pairs of frames for training."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...config import RenderConfig
from .. import kernels
from ..compositing import Frames
from .casting import View
from .draws import Draws
from .shading import MipAtlas, shade
from .world import Textures, World, draw_world, lay_out


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
    color, depth = shade(view, textures, fog)
    flow = torch.cat([view.flow(0, 1), -view.flow(1, 0)])
    return Frames(color, flow, depth, view.layer), view.sight.distance, view.occluded
