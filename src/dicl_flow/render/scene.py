"""Scenes as layers, each with texture, outline and motion.

The flow is exact because texture and outline of a layer are defined in frame 2, and frame 1 looks
them up at x + f(x). So the flow at x is f(x), for any smooth f, and nothing has to be inverted. All
smooth maps are computed on nodes a few pixels apart, and are linear in between.
"""

import math
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import RenderConfig
from ..ops import Size
from . import motions
from .motions import Camera, OwnMotion, Space, rotation_and_zoom
from .shapes import Dice
from .textures import TextureAtlas

_NODE_SPACING = 8  # px
_FLAT = 0.03  # remaining vertical motion in a scene with horizontal motion
_NOWHERE = 1e4  # px: the distance to the edge of an object that is absent


def has_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels run on this device."""
    return device.type == "cuda" and find_spec("triton") is not None


@dataclass(frozen=True)
class Scene:
    """D layers, from 0, the background, to the nearest, as they are in frame 2."""

    flow: Tensor  # (B, D, h, w, 2) displacements from frame 1 to 2 on the nodes
    center: Tensor  # (B, D, 2) in px; outline and texture are placed relative to it
    to_outline: Tensor  # (B, D-1, 2, 2) from px to places in an outline, each axis in [-1, 1]
    outline: Tensor  # (B, D-1, S, S) signed distance to the edge in px, plus 1/2; visible above 0
    to_texture: Tensor  # (B, D, 2, 2) from px to positions in the texture, each axis in [-1, 1]
    origin: Tensor  # (B, D, 2) position of the centre in the texture
    number: Tensor  # (B, D) index of the texture in the atlas
    gain: Tensor  # (B, D, 3) factor of the colours of the texture
    offset: Tensor  # (B, D, 1) added to the colours
    depth: Tensor  # (B, D, 1) in [0, 1]; the background has 1


@dataclass(frozen=True)
class Frames:
    """All frames of B scenes, stacked, frame 1 of all scenes first: N = 2B, in a clip more."""

    color: Tensor  # (N, 3, H, W) about [0, 1]
    flow: Tensor  # (N, 2, H, W): in frame 1 the true flow, in frame 2 the motion of what is there
    depth: Tensor  # (N, 1, H, W) in [0, 1]
    layer: Tensor  # (N, H, W) uint8: the visible layer; 0 is the background


def draw_scene(
    config: RenderConfig, dice: Dice, batch: int, size: Size, textures: TextureAtlas, shapes: Tensor
) -> Scene:
    """Draw `batch` scenes for frames of `size`, with outlines from `shapes` (N, 1, S, S)."""
    num_layers = 1 + config.objects_in(size)[1]
    depth = 1 - torch.arange(num_layers, device=dice.device).view(1, -1, 1) / num_layers
    blank = dice.happens(batch, share=config.blank_scenes) if config.blank_scenes else None
    pace = motions.draw_pace(config, dice, batch, size) * (1 if blank is None else 1 - blank)
    camera, own = _draw_motion(config, dice, pace, size, 1 + config.parallax * (1 - depth))
    nodes = node_positions(size, dice.device)  # (h, w, 2)
    points = nodes.view(1, 1, -1, 2).expand(batch, num_layers, -1, -1)
    flow = camera.flow(points) + own.flow(points)
    center = own.center[:, :, None]  # in frame 1
    center = (center + (camera.flow(center) + own.flow(center)))[:, :, 0]
    to_outline, outline = _draw_outlines(config, dice, batch, num_layers - 1, size, shapes)
    if camera.space is not None:
        to_outline, outline = _spread_grounds(camera.space, to_outline, outline, max(size))
    to_texture, origin = _draw_textures(config, dice, batch, num_layers, textures.size)
    photos, computed = textures.num_photos, len(textures) - textures.num_photos
    share = 1.0 if not photos else config.procedural_share if computed else 0.0
    photo = dice.integers(batch, num_layers, high=max(photos, 1))
    other = photos + dice.integers(batch, num_layers, high=max(computed, 1))
    number = torch.where(dice.happens(batch, num_layers, share=share) > 0, other, photo)
    change = config.layer_color * dice.uniform(batch, num_layers, 5, low=-1.0)
    gain, offset = (change[..., :3] / 2 + change[..., 3:4]).exp(), change[..., 4:] / 2
    if blank is not None:
        blank = blank[:, None, None]
        gain, offset = gain * (1 - blank), torch.lerp(offset, dice.uniform(batch, 1, 1), blank)
    flow, depth = flow.unflatten(2, nodes.shape[:2]), depth.expand(batch, -1, -1)
    return Scene(flow, center, to_outline, outline, to_texture, origin, number, gain, offset, depth)


def _draw_motion(
    config: RenderConfig, dice: Dice, pace: Tensor, size: Size, follow: Tensor
) -> tuple[Camera, OwnMotion]:
    batch = len(pace)
    sideways = dice.happens(batch, share=config.horizontal_share)
    flat = torch.stack([torch.ones_like(sideways), 1 - (1 - _FLAT) * sideways], 1)
    camera = motions.draw_camera(config, dice, pace, flat, size)
    num_layers = follow.shape[1]
    own = motions.draw_own_motion(config, dice, pace, flat, num_layers)
    follow, space = follow[..., None], None
    if config.depth_share:
        space = motions.draw_space(config, dice, pace, size, num_layers)
        own = own.of_some(space.moving)
        follow = torch.lerp(follow, torch.ones_like(follow), space.deep[..., None, None])
    camera = replace(camera, space=space, follow=follow)
    # positions are drawn for the time half-way between the frames, so that fast objects are seen
    spread = dice.uniform(batch, num_layers, 1, 2, low=-0.5, high=0.5) * (1 + 2 * config.margin)
    middle = camera.pivot + 2 * camera.pivot * spread
    moved = camera.flow(middle) + own.shift[:, :, None]
    center = (middle - moved / 2)[:, :, 0]
    if space is not None:
        center = torch.lerp(center, camera.pivot + space.horizon, space.ground[..., None])
    return camera, replace(own, center=center)


def _spread_grounds(
    space: Space, to_outline: Tensor, outline: Tensor, reach: int
) -> tuple[Tensor, Tensor]:
    """Set the outline of ground and walls: everything on the near side of their horizon."""
    # the signed distance is linear, so a ramp as wide as the frame represents it exactly
    ground = space.ground[:, 1:, None, None]
    facing = space.facing[:, 1:] / reach  # the ramp ends at 1
    ramp = torch.linspace(-1, 1, outline.shape[-1], device=outline.device) * reach + 0.5
    return (
        torch.lerp(to_outline, torch.stack([facing, torch.zeros_like(facing)], 2), ground),
        torch.lerp(outline, ramp.expand_as(outline), ground),
    )


def _draw_outlines(
    config: RenderConfig, dice: Dice, batch: int, objects: int, size: Size, shapes: Tensor
) -> tuple[Tensor, Tensor]:
    """(B, D-1, 2, 2) from px to positions in the outlines, and (B, D-1, S, S) outlines."""
    low, high = (min(size) * radius for radius in config.object_radius)
    radius = dice.log_uniform(batch, objects, low=low, high=high)
    stretch = dice.uniform(batch, objects, low=-0.5, high=0.5) * config.object_stretch
    stretch = torch.stack([stretch, -stretch], -1).exp()  # (B, D-1, 2)
    turn = rotation_and_zoom(dice.uniform(batch, objects, high=2 * math.pi), -radius.log())
    fewest, most = config.objects_in(size)
    count = fewest + dice.integers(batch, 1, high=most - fewest + 1)
    absent = torch.arange(objects, device=dice.device) >= count
    chosen = shapes[dice.integers(batch, objects, high=len(shapes)), 0]  # (B, D-1, S, S)
    edge = 0.5 - _NOWHERE * absent
    outline = torch.addcmul(edge[..., None, None], chosen, radius[..., None, None])
    return turn / stretch[..., None], outline


def _draw_textures(
    config: RenderConfig, dice: Dice, batch: int, layers: int, size: Size
) -> tuple[Tensor, Tensor]:
    """(B, D, 2, 2) from px to positions in textures of `size`, and (B, D, 2) of the centres."""
    low, high = config.texture_scale
    scale = dice.log_uniform(batch, layers, low=low, high=high).log()
    turn = dice.mostly_small(batch, layers, extent=math.pi)
    turn[:, 0] /= 6  # the background is nearly upright
    matrix = rotation_and_zoom(turn, scale)
    matrix[..., 0] *= dice.uniform(batch, layers, 1, low=-1.0).sign()  # some are mirrored
    half = torch.stack([matrix.new_full((), side / 2) for side in (size[1], size[0])])
    origin = dice.uniform(batch, layers, 2, low=-1.0)
    origin[:, 0] *= 0.3  # and shows the middle of its texture, not the mirrored border
    return matrix / half[:, None], origin


def node_positions(size: Size, device: torch.device) -> Tensor:
    """(h, w, 2) positions in px, evenly spaced from corner to corner of the frame."""
    y, x = (
        torch.linspace(0, side - 1, math.ceil((side - 1) / _NODE_SPACING) + 1, device=device)
        for side in size
    )
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)


def upsample(nodes: Tensor, size: Size) -> Tensor:
    """(N, C, h, w) on the nodes -> (N, C, H, W) on the pixels."""
    return F.interpolate(nodes, size, mode="bilinear", align_corners=True)
