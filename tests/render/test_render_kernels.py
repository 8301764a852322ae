"""Rendering kernels equal the plain path, on a GPU or in Triton's interpreter."""

import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
pytest.importorskip("triton", reason="Triton is not installed")

from dicl_flow.config import RenderConfig
from dicl_flow.config.render import EFFECTS
from dicl_flow.render import Renderer, camera, kernels, load_textures, renderer
from dicl_flow.render.camera import recolor

pytestmark = pytest.mark.heavy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = (35, 57)  # no multiple of anything
CLEAR = RenderConfig(
    **{**dict.fromkeys(EFFECTS, (0.0, 0.0)), "fog": (1.0, 0.9)},
    num_shapes=32,
    shape_side=48,
    object_radius=(0.3, 0.8),
)


@pytest.fixture(autouse=True)
def long_runs(monkeypatch):
    """Few, long runs of pixels: the interpreter takes as long for a short one."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "_BLOCK", 1024)


@pytest.fixture
def on_both_paths(monkeypatch):
    def results(compute):
        found = []
        for usable in (False, True):
            for module in (camera, renderer):
                monkeypatch.setattr(module, "has_kernels", lambda device, usable=usable: usable)
            found.append(compute())
        return found

    return results


def frames(channels=3, scale=1.0):
    generator = torch.Generator().manual_seed(channels)
    return (scale * torch.randn(2, channels, *SIZE, generator=generator)).to(DEVICE)


@pytest.mark.parametrize(
    "changes",
    [
        {"objects": (2, 5), "deform_share": 1.0},
        {"objects": (0, 2), "depth_share": 1.0, "ground_share": (1.0, 1.0)},
    ],
    ids=["flat", "deep"],
)
def test_layers_are_composed_as_on_the_plain_path(changes, on_both_paths):
    textures = load_textures(None, DEVICE, size=(24, 31))
    scenes = Renderer(replace(CLEAR, **changes), SIZE, textures, DEVICE, seed=5)
    plain, kernel = on_both_paths(lambda: scenes.render(2, 1))
    assert plain.layers.unique().numel() > 2
    # an edge that runs through the middle of a pixel may fall to either side
    same = plain.layers == kernel.layers
    assert (~same).sum() <= 2
    both = same.view(2, 2, *SIZE).all(0)
    for name in ("flow", "image1", "image2"):
        difference = (getattr(plain, name) - getattr(kernel, name)).abs().amax(1)
        assert difference[both].max() < 1e-4


def test_blur_is_the_same(on_both_paths):
    paths = frames(2, scale=20.0)
    for effect in (lambda: camera._smear(frames(), paths), lambda: camera._box_blur(frames())):
        plain, kernel = on_both_paths(effect)
        assert (plain - frames()).abs().max() > 0.1
        torch.testing.assert_close(kernel, plain, atol=1e-4, rtol=0)


@pytest.mark.parametrize("exposed", [False, True])
def test_colours_are_the_same(exposed, on_both_paths):
    image, offset = frames().sigmoid(), torch.tensor([0.1, -0.2], device=DEVICE)
    matrix = torch.eye(3, device=DEVICE) + frames()[:, :, :3, 0] / 4
    light = frames(1)[:, :, :3, :4].sigmoid()
    exposure = (light, torch.tensor([0.7, 1.4], device=DEVICE)) if exposed else None
    plain, kernel = on_both_paths(lambda: recolor(image, matrix, offset, exposure))
    assert 0 <= plain.min() < 0.1 < plain.max() <= 1
    torch.testing.assert_close(kernel, plain, atol=1e-5, rtol=0)
