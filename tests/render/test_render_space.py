"""Scenes with depth, still scenes and the number of objects are as asked."""

from dataclasses import replace

import pytest
import torch

from dicl_flow.config import RenderConfig
from dicl_flow.config.render import EFFECTS
from dicl_flow.errors import InputError
from dicl_flow.ops import warp_with_mask
from dicl_flow.render import Renderer, load_textures
from dicl_flow.render.motions import draw_camera, draw_pace, draw_space
from dicl_flow.render.shapes import Dice, smooth_noise
from dicl_flow.render.textures import TextureAtlas

pytestmark = pytest.mark.heavy

CPU, SIZE = torch.device("cpu"), (96, 128)
CLEAR = RenderConfig(num_shapes=16, shape_side=48, **dict.fromkeys(EFFECTS, (0.0, 0.0)))
DEEP = replace(CLEAR, depth_share=1.0)


@pytest.fixture(scope="module")
def textures():
    """Textures smooth enough that sampling them twice loses little."""
    noise = smooth_noise(Dice(CPU, 5), 12, (96, 128), cells=12, channels=3)
    return TextureAtlas((noise / 5 + 0.5).clamp(0, 1), noise[:0])


def test_the_flow_is_that_of_points_in_space():
    dice, batch, layers = Dice(CPU, 3), 4, 5
    pace = draw_pace(DEEP, dice, batch, SIZE)
    camera = draw_camera(DEEP, dice, pace, torch.ones(batch, 2), SIZE)
    space = draw_space(DEEP, dice, pace, SIZE, layers)
    pixel = dice.uniform(batch, layers, 6, 2, high=96)
    flow = replace(camera, space=space).flow(pixel)

    # the same by hand: a pixel's ray to its plane, the camera's turn, its travel, a projection
    offset = pixel - camera.pivot
    inverse = space.inverse_depth(offset)
    point = torch.cat([offset, torch.ones_like(inverse)], -1) / inverse
    turned = torch.cat(
        [
            torch.einsum("bij,bdpj->bdpi", camera.linear[:, 0], point[..., :2])
            + camera.shift * point[..., 2:],
            point[..., 2:] + (camera.perspective * point[..., :2]).sum(-1, keepdim=True),
        ],
        -1,
    )
    moved = turned + space.travel * torch.tensor([1.0, 1.0, -1.0])
    seen = moved[..., :2] / moved[..., 2:]
    sensible = (moved[..., 2] * inverse[..., 0] > 0.2) & (inverse[..., 0] > 0)
    assert sensible.float().mean() > 0.7
    torch.testing.assert_close(flow[sensible], (seen - offset)[sensible], atol=1e-3, rtol=1e-4)
    assert (camera.flow(pixel) - flow).norm(dim=-1).mean() > 1


def widest(values):
    """(B, 1, H, W): the largest value within three pixels."""
    return torch.nn.functional.max_pool2d(values, 7, 1, 3)


def test_frame_2_warped_by_the_flow_is_frame_1(textures):
    scenes = Renderer(DEEP, SIZE, textures).render(16, 0)
    assert scenes.flow.norm(dim=1).quantile(0.9) > 10
    layer, occluded = scenes.layer[:, None].float(), scenes.occluded[:, None].float()
    edges = widest(layer) != -widest(-layer)
    warped, inside = warp_with_mask(scenes.image2, scenes.flow)
    clean = inside & ~edges & (widest(occluded) == 0)
    assert clean.float().mean() > 0.3
    difference = (warped - scenes.image1).abs().mean(1, keepdim=True)
    assert difference[clean].mean() < 0.001
    assert (scenes.image2 - scenes.image1).abs().mean() > 0.03


def test_the_ground_lies_below_its_horizon_and_moves_more_the_nearer_it_is(textures):
    still = {"background_shift": (0,) * 6, "background_rotation": 0.0, "background_zoom": 0.0}
    config = replace(
        DEEP, objects=(1, 1), ground_share=(1.0, 0.0), **still, perspective=0.0,
        forward_share=0.0, tiny_share=0.0, deform_share=0.0, travel_sideways=(0,) * 6,
    )  # fmt: skip
    scenes = Renderer(config, SIZE, textures).render(8, 0)
    ground = scenes.layer == 1
    rows = ground.float().mean(2)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, -1] == 1).all()
    assert 0.2 < ground.float().mean() < 0.8
    speed = scenes.flow.norm(dim=1)
    assert (speed[:, -1].mean(1) > 3 * speed[:, 60].mean(1)).float().mean() > 0.7


def test_a_share_of_the_scenes_has_depth_and_the_default_none(textures):
    half = replace(CLEAR, depth_share=0.5)
    dice = Dice(CPU, 0)
    space = draw_space(half, dice, torch.ones(400), SIZE, 6)
    assert 0.4 < space.deep.mean() < 0.6
    flat = space.deep[:, 0] == 0
    assert not space.travel[flat].any()
    assert not space.ground[flat].any()
    assert space.moving[flat].all()
    assert space.moving[~flat].mean() < 0.5
    assert RenderConfig().depth_share == 0


def test_in_still_scenes_nothing_moves(textures):
    scenes = Renderer(replace(DEEP, still_scenes=0.5), SIZE, textures).render(32, 0)
    speed = scenes.flow.flatten(1).norm(dim=1)
    still = speed < 1e-2
    assert 0.25 < still.float().mean() < 0.75
    same = (scenes.image1 - scenes.image2).abs().flatten(1).amax(1)
    assert (same[still] < 1e-3).all()
    assert (same[~still] > 1e-2).all()


def test_blank_scenes_have_one_colour_and_no_motion(textures):
    scenes = Renderer(replace(CLEAR, blank_scenes=0.5), SIZE, textures).render(32, 0)
    contrast = scenes.image1.flatten(2).std(2).amax(1)
    blank = contrast < 1e-4
    assert 0.25 < blank.float().mean() < 0.75
    assert scenes.flow[blank].abs().max() < 1e-2
    assert torch.equal(scenes.image1[blank], scenes.image2[blank])
    assert scenes.image1[blank].mean((1, 2, 3)).std() > 0.1  # not all of the same colour
    assert (scenes.flow[~blank].norm(dim=1).flatten(1).amax(1) > 0.1).all()


def test_larger_frames_have_more_objects(textures):
    config = replace(CLEAR, objects=(2, 6), objects_reference=(48, 64))
    assert config.objects_in((48, 64)) == (2, 6)
    assert config.objects_in(SIZE) == (4, 12)
    assert replace(config, objects_reference=()).objects_in(SIZE) == (2, 6)
    layers = Renderer(config, SIZE, textures).render(32, 0).layers
    assert 6 < layers.max() <= 12
    with pytest.raises(InputError, match=r"objects_reference must be \(height, width\)"):
        RenderConfig(objects_reference=(3,))


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_what_is_hidden_can_weigh_less(textures, weight):
    plain = Renderer(CLEAR, SIZE, textures).render(8, 0)
    lighter = Renderer(replace(CLEAR, occluded_weight=weight), SIZE, textures).render(8, 0)
    hidden = plain.valid & plain.occluded
    assert hidden.float().mean() > 0.02
    assert torch.equal(lighter.image2, plain.image2)
    assert torch.equal(lighter.valid & ~hidden, plain.valid & ~hidden)
    assert float(lighter.valid[hidden].float().mean()) == pytest.approx(weight, abs=0.03)


def test_wrong_settings_are_refused():
    with pytest.raises(InputError, match="depth_share must be in"):
        RenderConfig(depth_share=1.5)
    with pytest.raises(InputError, match="travel_sideways must be six increasing lengths"):
        RenderConfig(travel_sideways=(3, 2, 1, 1, 1, 1))


def test_scenes_with_depth_can_use_packaged_textures():
    scenes = Renderer(DEEP, (32, 48), load_textures(None, "cpu", limit=2)).render(2, 0)
    assert scenes.flow.isfinite().all()
    assert scenes.image1.isfinite().all()
