"""PWC-Net and VCN on a CUDA device: the CPU's flow, recorded steps, and they learn."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from dicl_flow.config import (
    HOSTS,
    AugmentConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from dicl_flow.models import build
from dicl_flow.render import Renderer, load_textures
from dicl_flow.training import Processes, Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GRID = [pair for pair in product(HOSTS, (None, "dicl")) if pair != ("dicl", "dicl")]  # its own
CUDA = torch.device("cuda")


def stage(host, matcher, **changes):
    augment = AugmentConfig.crop_only((128, 256))
    optimizer = OptimizerConfig(learning_rate=2e-4, clip=1.0)  # PWC-Net leaps at 1e-3
    config = TrainConfig(
        "test", (DataConfig("rendered"),), batch=8, augment=augment, optimizer=optimizer
    )
    return replace(config, model=ModelConfig(host=host, matcher=matcher), **changes)


def pairs(config, number=8):
    motion = replace(config.render, motion=0.3)
    textures = load_textures(None, CUDA, 0)
    return Renderer(motion, config.augment.crop, textures, CUDA, 0).render(number, 0).to_batch()


@pytest.mark.parametrize(("host", "matcher"), GRID)
def test_the_same_flow_on_both_devices(host, matcher):
    torch.manual_seed(0)
    model = build(ModelConfig(host=host, matcher=matcher)).eval().double()
    images = torch.rand(2, 1, 3, 128, 128, dtype=torch.double)
    with torch.no_grad():
        expected = model(*images)[-1].refined
        found = model.cuda()(*images.cuda())[-1].refined
    torch.testing.assert_close(found.cpu(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("host", "matcher"), GRID)
def test_a_recorded_step_is_a_plain_step(host, matcher):
    """Fused kernels in a CUDA graph: the same loss at the start, and it falls as far."""
    losses = {}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for backend in ("plain", "fused"):
            config = stage(host, matcher, backend=backend)
            step, batch = Trainer(config, Processes(CUDA)).train_step, pairs(config)
            losses[backend] = [step(iter([batch] * 2), 0.0)["loss"] for _ in range(20)]
    assert losses["fused"][0] == pytest.approx(losses["plain"][0], rel=1e-3)
    assert losses["fused"][-1] < 0.9 * losses["fused"][0]


@pytest.mark.parametrize(("host", "matcher"), GRID)
def test_every_host_learns_eight_pairs(host, matcher):
    config = stage(host, matcher, backend="fused")
    trainer = Trainer(config, Processes(CUDA))
    batch = pairs(config)
    errors = [trainer.train_step(iter([batch] * 2), 0.0)["epe"]]
    while errors[-1] >= 1 and len(errors) < 2000:
        errors.append(trainer.train_step(iter([batch] * 2), 0.0)["epe"])
    assert errors[-1] < 1, f"EPE {errors[0]:.2f} px at first, {errors[-1]:.2f} after 2000 steps"
