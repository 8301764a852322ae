"""Steps that train the second pass learn from it alone and resume as they were."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import small_training
import torch
import torch.nn.functional as F
from small_training import CPU

from dicl_flow.config import (
    AugmentConfig,
    LevelConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RenderConfig,
    SecondPassConfig,
)
from dicl_flow.data import FlowBatch
from dicl_flow.errors import InputError
from dicl_flow.models import InitialFlow, build
from dicl_flow.ops import upsample_flow
from dicl_flow.training import RunFolder, Trainer, read_recipe, train
from dicl_flow.training.loss import matching_loss
from dicl_flow.training.trainer import is_second_pass
from dicl_flow.weights import Weights, encode_weights

pytestmark = pytest.mark.heavy

SIZE, HALF, SEEN = (64, 192), (32, 96), (64, 128)  # the network takes multiples of 64
LEVELS = tuple(LevelConfig(stride, 1, ((4, 1),)) for stride in (32, 16, 8))
MODEL = ModelConfig(matcher="mlp", feature_channels=4, levels=LEVELS)
CONFIG = replace(
    small_training.CONFIG,
    steps=1,
    batch=1,
    picture_every=0,
    model=MODEL,
    augment=AugmentConfig(crop=SIZE),
    loss=LossConfig((0.5, 0.75, 1.0), (0.4, 0.6, 0.8), matching=(1.0, 0.5, 0.0)),
    second_pass=SecondPassConfig(every=2),
)


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    images = torch.rand(2, 1, 3, *SIZE, generator=generator)
    flow = 12 * torch.randn(1, 2, *SIZE, generator=generator)  # some of it beyond reach
    return FlowBatch(*images, flow, torch.rand(1, *SIZE, generator=generator) > 0.2)


class NumberedSource:
    def batches(self, size, start_step, processes):
        step = start_step
        while True:
            yield batch_of(step)
            step += 1


def trainer_at_step(step, config=CONFIG):
    trainer = Trainer(config, CPU)
    trainer.step = step
    return trainer


def state_of(trainer):
    checkpoint = trainer.checkpoint()
    moments = [
        value for state in checkpoint["optimizer"]["state"].values() for value in state.values()
    ]
    return [*checkpoint["model"].values(), *checkpoint["average"].values(), *moments]


def naive_step(model, batch, *, enlarge):
    """Loss by its definition, levels and start; `model` is in training mode before and after."""
    images = [2 * image - 1 for image in (batch.image1, batch.image2)]

    def resized(image, size, mode="bilinear"):
        return F.interpolate(image, size=size, mode=mode, align_corners=False, antialias=True)

    with torch.no_grad():
        last = model.eval()(*(resized(image, SEEN) for image in images))[-1].refined
        small = upsample_flow(last, SEEN)
        start = F.interpolate(small, size=SIZE, mode="bilinear", align_corners=False)
        start = start * torch.tensor([192 / 128, 64 / 64])[:, None, None]
    if enlarge:
        images = [resized(resized(i, HALF), SIZE, "bicubic").clamp(-1, 1) for i in images]
    levels = model.train()(*images, initial=InitialFlow(start, 16))
    terms = []
    for level, reach, refined, matched in zip(levels, (16, 24), (0.75, 1), (0.6, 0.8), strict=True):
        within = ((batch.flow - start).abs() <= reach).all(1)[batch.valid]
        for flow, weight in ((level.refined, refined), (level.matched, matched)):
            error = (upsample_flow(flow, SIZE) - batch.flow).norm(dim=1)[batch.valid]
            terms.append(weight * (error * within).mean().item())
        assert 0.1 < within.float().mean() < 0.9
    entropy = matching_loss(levels, batch, (0.5, 0.0), CPU.average)
    return np.mean(terms) + 0.3 * entropy.item()


@pytest.mark.parametrize("enlarge", [False, True])
def test_a_step_is_a_first_pass_without_a_trace_and_a_second_that_learns(enlarge):
    config = replace(CONFIG, second_pass=SecondPassConfig(2, enlarge))
    trainer = trainer_at_step(1, config)
    model = copy.deepcopy(trainer.model).train()
    found = trainer.train_step(iter([batch_of(1)]), 0.0)
    assert found["loss"] == pytest.approx(naive_step(model, batch_of(1), enlarge=enlarge), rel=1e-5)
    for mine, theirs in zip(trainer.model.buffers(), model.buffers(), strict=True):
        assert torch.equal(mine, theirs)  # the norms of one pass over the frames
    trained = {name for name, p in trainer.model.named_parameters() if p.grad is not None}
    skipped = {name for name, _ in trainer.model.named_parameters()} - trained
    assert all(name.startswith(("levels.32.", "features.outputs.32.")) for name in skipped)
    assert not any(name.startswith("levels.32.") for name in trained)


def test_kinds_of_steps_do_not_mix():
    trainer = trainer_at_step(0)
    batches = NumberedSource().batches(1, 0, CPU)
    trainer.train_step(batches, 0.0)
    assert len(trainer.levels) == 3
    assert "stride_32/refined_error" in trainer.gauges()
    trainer.train_step(batches, 0.0)
    assert len(trainer.levels) == 2
    assert trainer.gauges() == {}
    trainer.train_step(batches, 0.0)
    assert len(trainer.levels) == 3


def test_a_resumed_run_takes_the_same_steps():
    whole = trainer_at_step(0)
    batches = NumberedSource().batches(1, 0, CPU)
    whole.train_step(batches, 0.0)
    checkpoint = copy.deepcopy(whole.checkpoint())
    whole.train_step(batches, 0.0)
    resumed = Trainer(CONFIG, CPU)
    resumed.restore(checkpoint)
    resumed.train_step(NumberedSource().batches(1, 1, CPU), 0.0)
    for mine, theirs in zip(state_of(resumed), state_of(whole), strict=True):
        assert torch.equal(mine, theirs)


def test_frozen_norms_stay_frozen():
    config = replace(CONFIG, optimizer=OptimizerConfig(freeze_norm=True))
    trainer = trainer_at_step(1, config)
    before = [buffer.clone() for buffer in trainer.model.buffers()]
    assert "loss" in trainer.train_step(iter([batch_of(0)]), 0.0)
    for mine, theirs in zip(trainer.model.buffers(), before, strict=True):
        assert torch.equal(mine, theirs)


def test_each_kind_of_step_has_all_sizes():
    sizes = RenderConfig(sizes=(SIZE, (192, 128), (128, 128)))
    config = replace(CONFIG, render=sizes, second_pass=SecondPassConfig(3))
    kinds = [is_second_pass(config, step) for step in range(18)]
    assert kinds == [*[False] * 6, *[True] * 3] * 2
    assert [is_second_pass(CONFIG, step) for step in range(4)] == [False, True] * 2
    never = replace(CONFIG, second_pass=SecondPassConfig())
    assert not any(is_second_pass(never, step) for step in range(9))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["second_pass.every=-1"], "second_pass.every must be at least 0"),
        (["second_pass.every=2", "model.host=pwcnet"], "needs host 'dicl'"),
        (["second_pass.every=2", "model.host=vcn"], "needs host 'dicl'"),
        (
            [
                "second_pass.every=2",
                *("model.levels=[{stride=8}]", "loss.refined=[1]", "loss.matched=[1]"),
            ],
            "a level of stride 16 to start at, got host 'dicl' with the strides 8",
        ),
    ],
)
def test_what_has_no_second_pass_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        read_recipe("chairs-2", changes)


def test_several_processes_are_refused():
    with pytest.raises(InputError, match="one process"):
        Trainer(CONFIG, replace(CPU, world_size=2))


def weights_at(path, levels):
    config = replace(MODEL, levels=levels)
    path.write_bytes(encode_weights(Weights(config, build(config).state_dict())))
    return path


def test_a_level_finer_than_those_of_the_start_begins_afresh(tmp_path, capsys):
    path = weights_at(tmp_path / "coarse.safetensors", LEVELS[:2])
    started = Trainer(CONFIG, CPU, path).model.state_dict()
    random = Trainer(CONFIG, CPU).model.state_dict()
    new = ("levels.8.", "features.up_again.8.", "features.outputs.8.")
    for key in (key for key in started if key.endswith("conv.weight")):
        assert torch.equal(started[key], random[key]) == key.startswith(new), key
    train(CONFIG, NumberedSource(), RunFolder(tmp_path / "run"), CPU, initial=path)
    said = " ".join(capsys.readouterr().err.split())
    assert "have no level of stride 8: it starts from random weights" in said
    with pytest.raises(InputError, match=r"missing: features\.down\.64"):
        Trainer(CONFIG, CPU, weights_at(tmp_path / "fine.safetensors", LEVELS[1:]))
