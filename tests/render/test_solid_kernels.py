"""Kernels of solid scenes equal the plain path, on a GPU or in Triton's interpreter."""

import os
from dataclasses import replace

import pytest
import torch
from conftest import slow_interpreted

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
pytest.importorskip("triton", reason="Triton is not installed")

from dicl_flow.config import PLACES, Crowd, RenderConfig
from dicl_flow.config.render import EFFECTS
from dicl_flow.render import load_textures
from dicl_flow.render.shapes import shape_bank
from dicl_flow.render.solid import color_kernels
from dicl_flow.render.solid.casting import View
from dicl_flow.render.solid.shading import shade
from dicl_flow.render.solid.things import Draws
from dicl_flow.render.solid.world import Textures, _Builder, lay_out

pytestmark = pytest.mark.heavy

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
SIZE = (120, 200) if ON_GPU else (24, 40)
CONFIG = RenderConfig(**dict.fromkeys(EFFECTS, (0.0, 0.0)), num_shapes=16, shape_side=32)
# few things in the interpreter, but every form, shadows, reflections and a pane
FEW = tuple(
    Crowd(thing, (1, 1), ahead=(2, 6), moving=1.0, drift=1.0)
    for thing in ("sign", "bush", "block", "tree")
)


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """The interpreter takes as long for a small tile as for a large one."""
    if not ON_GPU:
        monkeypatch.setattr(color_kernels, "_TILE_HEIGHT", 32)
        monkeypatch.setattr(color_kernels, "_TILE_WIDTH", 64)


def build(name, seed):
    place = PLACES[name] if ON_GPU else replace(PLACES[name], crowds=FEW)
    world = _Builder(CONFIG, Draws(seed), SIZE, Textures(0, 6, 0.1), place, 0.8 * SIZE[1]).build()
    sun = (0.3, -0.9, 0.3, 0.4, float(seed % 2 == 0), 20.0, 0.3, 1.0, 0.2, 0.3, 2.0)
    world.light = sun
    world.bodies = [(*row[:27], 0.5, 0.3, *row[29:]) for row in world.bodies]
    return world


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("street", 0),
        pytest.param("room", 1, marks=slow_interpreted),
        pytest.param("floating", 2, marks=slow_interpreted),
    ],
)
def test_kernels_equal_the_plain_path(name, seed):
    textures = load_textures(None, DEVICE, size=(32, 64)).mips
    shapes = shape_bank(torch.device(DEVICE), 0, CONFIG.num_shapes, CONFIG.shape_side)
    fog = torch.tensor([[0.5, 0.6, 0.7, 0.8]], device=DEVICE)
    layout = lay_out([build(name, seed)], (0.0, 1.0), SIZE).to(DEVICE)
    caster = color_kernels.PairCaster(layout, textures, shapes, SIZE)
    color, depth = caster.shade(fog)
    view = View(layout, shapes, SIZE)
    plain_color, plain_depth = shade(view, textures, fog)
    flow = torch.cat([view.flow(0, 1), -view.flow(1, 0)])
    # a ray that touches an edge may be rounded to either side
    alike = caster.surface // 4 == view.body
    assert (~alike).sum() <= 1e-3 * alike.numel()
    assert torch.equal(caster.layer[alike], view.layer[alike])
    far = view.distance[alike]
    torch.testing.assert_close(caster.distance[alike], far, rtol=1e-4, atol=1e-4)
    moves = alike & (flow.norm(dim=1) < 1e3)
    for mine, plain in zip(caster.flow.unbind(1), flow.unbind(1), strict=True):
        torch.testing.assert_close(mine[moves], plain[moves], rtol=1e-3, atol=1e-2)
    assert _differing(color, plain_color) < 0.01
    assert _differing(depth, plain_depth) < 1e-3
    assert (caster.occluded() != view.occluded()).float().mean() < 0.005
    assert plain_color.std() > 0.05


def _differing(one, two):
    """The share of pixels that differ by more than rounding."""
    return float(((one - two).abs().amax(1) > 2e-3).float().mean())


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_batch_is_the_same_on_both_devices():
    """Worlds are drawn on the CPU, so flow and occlusion agree; noise is drawn on the device."""
    from dicl_flow.render import Renderer

    config = replace(CONFIG, solid_share=1.0)
    one, two = (
        Renderer(config, SIZE, load_textures(None, device, size=(64, 64)), device).render(6, 3)
        for device in ("cpu", "cuda")
    )
    gap = (one.flow - two.flow.cpu()).norm(dim=1)
    assert (gap > 0.05).float().mean() < 5e-3
    assert (one.occluded != two.occluded.cpu()).float().mean() < 0.01
