"""Rendered motion grows with the frame."""

from dataclasses import replace

import pytest
import torch

from dicl_flow.config import RenderConfig
from dicl_flow.errors import InputError
from dicl_flow.render import Renderer, load_textures

pytestmark = pytest.mark.heavy

SMALL, LARGE = (32, 48), (64, 96)
GROWING = RenderConfig(
    motion_reference=SMALL, num_shapes=4, shape_side=16, object_radius=(0.1, 0.3)
)


@pytest.fixture(scope="module")
def textures():
    return load_textures(None, "cpu", limit=2)


def flow_of(config, size, textures):
    return Renderer(config, size, textures).render(4, 0).flow


def test_motion_grows_as_the_square_root_of_the_pixels():
    assert GROWING.motion_in(SMALL) == 1
    assert GROWING.motion_in(LARGE) == pytest.approx(2)
    assert GROWING.motion_in((32, 12)) == pytest.approx(0.5)
    assert replace(GROWING, motion=0.6).motion_in(LARGE) == pytest.approx(1.2)
    assert RenderConfig(motion=0.7).motion_in(LARGE) == 0.7


def test_larger_frames_move_as_with_that_factor(textures):
    constant = replace(GROWING, motion_reference=())
    assert torch.equal(flow_of(GROWING, SMALL, textures), flow_of(constant, SMALL, textures))
    twice = replace(constant, motion=2.0)
    grown = flow_of(GROWING, LARGE, textures)
    assert torch.equal(grown, flow_of(twice, LARGE, textures))
    assert grown.norm(dim=1).mean() > 1.3 * flow_of(constant, LARGE, textures).norm(dim=1).mean()


@pytest.mark.parametrize("reference", [(384,), (1, 2, 3), (0, 512)])
def test_a_reference_is_a_size(reference):
    with pytest.raises(InputError, match=r"motion_reference must be \(height, width\)"):
        RenderConfig(motion_reference=reference)
