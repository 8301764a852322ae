"""Composes layers into frames: which layer is visible, with its colour, flow and depth."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import sample_clamped, sampling_grid
from . import kernels
from .motions import transform
from .scene import Scene, node_positions, upsample
from .textures import TextureAtlas


@dataclass(frozen=True)
class Frames:
    """Both frames of B scenes, stacked, frame 1 first: N = 2B."""

    color: Tensor
    """(N, 3, H, W) about [0, 1]."""
    flow: Tensor
    """(N, 2, H, W): in frame 1 the true flow, in frame 2 the motion of the layer at that pixel."""
    depth: Tensor
    """(N, 1, H, W) in [0, 1]."""
    layer: Tensor
    """(N, H, W) uint8: the visible layer; 0 is the background."""


def compose(scene: Scene, fog: Tensor, textures: TextureAtlas, size: tuple[int, int]) -> Frames:
    """Compose the layers; at antialiased edges colours are mixed, flow is of the larger part.

    `fog` (B, 4) is its share in front of the background, and its colour.
    """
    if kernels.usable(fog.device):
        from .kernels.compose import compose_layers  # imports Triton

        return Frames(*compose_layers(scene, fog, textures, size))
    position = _positions(scene, size)
    front, behind, cover = _visible_layers(scene, position, size)
    layers = torch.stack([front, behind], 1)
    seen = _look_up(scene, position, len(textures), layers)  # (N, C, 2, H, W)
    flow, place, gain, offset, depth = seen.split([2, 3, 3, 1, 1], 1)
    color = _sample_textures(textures, place).mul_(gain).add_(offset)
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
    """(B, H, W) bool: the flow ends under a nearer layer or outside the frame.

    Only nearer layers count: where a farther one is visible, the flow ends at the edge of its own
    layer. `flow` is (B, 2, H, W); `layer` is that of both frames, (2B, H, W).
    """
    layer1, layer2 = (layer + 1).float().chunk(2)
    grid = sampling_grid(flow)
    seen = F.grid_sample(layer2[:, None], grid, mode="nearest", align_corners=True)  # 0 outside
    return (seen[:, 0] > layer1) | (seen[:, 0] == 0)


def _positions(scene: Scene, size: tuple[int, int]) -> Tensor:
    """(N, D, P, 2) in frame 2, of the nodes of frame 1, then of 2, relative to the centres."""
    nodes = node_positions(size, scene.flow.device).expand_as(scene.flow)
    position = torch.cat([nodes + scene.flow, nodes]).flatten(2, 3)
    return position - scene.center.repeat(2, 1, 1)[:, :, None]


def _visible_layers(
    scene: Scene, position: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nearest layer, the first opaque one behind it, and the coverage, (N, H, W)."""
    place = transform(scene.to_outline.repeat(2, 1, 1, 1), position[:, 1:])
    frames, objects = place.shape[:2]
    place = place.unflatten(2, scene.flow.shape[2:4]).flatten(0, 1)
    grid = upsample(place.permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)
    outline = scene.outline.repeat(2, 1, 1, 1).flatten(0, 1)[:, None]
    edge = sample_clamped(outline, grid)
    edge = edge.view(frames, objects, *size)  # at least 1: inside, at most 0: outside
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


def _sample_textures(textures: TextureAtlas, place: Tensor) -> Tensor:
    """(N, 3, K, H, W) positions in the atlas -> (N, 3, K, H, W) colours."""
    frames, _, layers = place.shape[:3]
    grid = place.permute(0, 2, 3, 4, 1).flatten(0, 1)[None]  # (1, NK, H, W, 3)
    color = F.grid_sample(textures.images, grid, padding_mode="reflection", align_corners=False)
    return color[0].unflatten(1, (frames, layers)).transpose(0, 1)
