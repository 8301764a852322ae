"""The cross-entropy of the scores equals its definition and trains the matching."""

from dataclasses import replace

import numpy as np
import pytest
import small_training
import torch
from conftest import SMALL
from small_training import CPU

from dicl_flow.config import (
    AugmentConfig,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from dicl_flow.data import FlowBatch
from dicl_flow.errors import InputError
from dicl_flow.models import LevelFlow, build
from dicl_flow.training import Trainer, read_recipe, recipe_names
from dicl_flow.training.loss import matching_loss, matching_weight, score_entropy

CONFIG = replace(
    small_training.CONFIG,
    model=replace(SMALL, matcher="dot"),
    augment=AugmentConfig(crop=(32, 48)),
    loss=LossConfig((0.5, 1.0), (0.4, 0.8), matching=(1.0, 0.5)),
    optimizer=OptimizerConfig(learning_rate=1e-3),
)


def random_case(seed=0, radius=3, height=3, width=4, stride=8, size=2):
    """A level's scores and start, and a truth of which some is beyond the level's reach."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    side = 2 * radius + 1
    scores = 2 * randn(size, side, side, height, width)
    start = randn(size, 2, height, width)
    truth = stride * 1.5 * randn(size, 2, height * stride, width * stride)
    valid = torch.rand(size, height * stride, width * stride, generator=generator) > 0.2
    images = torch.rand(2, size, 3, height * stride, width * stride, generator=generator)
    level = LevelFlow(start, start, start[:, :1], scores=scores, start=start)
    return level, FlowBatch(*images, truth, valid)


def tent(distance):
    return max(0.0, 1 - abs(distance))


def naive_loss(level, batch):
    """Point by point, displacement by displacement, as the definition reads."""
    scores, start = level.scores.numpy(), level.start.numpy()
    truth, valid = batch.flow.numpy(), batch.valid.numpy()
    (size, side, _, height, width), (full_height, full_width) = scores.shape, truth.shape[-2:]
    radius, total, count = side // 2, 0.0, 0.0
    step_y, step_x = (full_height - 1) / (height - 1), (full_width - 1) / (width - 1)
    for b, i, j in np.ndindex(size, height, width):
        cell = scores[b, :, :, i, j]
        logs = cell - np.log(np.exp(cell).sum())
        for dy, dx in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
            y = min(max(round((i + dy / 4) * step_y), 0), full_height - 1)
            x = min(max(round((j + dx / 4) * step_x), 0), full_width - 1)
            motion = truth[b, :, y, x] * [width / full_width, height / full_height]
            rest = motion - start[b, :, i, j]
            if not valid[b, y, x] or max(abs(rest)) > radius:
                continue
            weight = 0.25 + min(2, np.hypot(*motion))
            for u in range(-radius, radius + 1):
                for v in range(-radius, radius + 1):
                    target = tent(rest[0] - u) * tent(rest[1] - v)
                    total -= weight * target * logs[u + radius, v + radius]
            count += weight
    return total / count


@pytest.mark.parametrize("radius", [1, 3])
def test_the_loss_is_what_its_definition_says(radius):
    level, batch = random_case(radius=radius)
    found = matching_loss([level], batch, (0.7,), CPU.average)
    assert found.item() == pytest.approx(0.7 * naive_loss(level, batch), rel=1e-9)


def test_the_levels_are_summed_and_those_without_weight_left_out():
    cases = [random_case(seed) for seed in range(2)]
    levels, batch = [level for level, _ in cases], cases[0][1]
    each = [matching_loss([level], batch, (1.0,), CPU.average) for level in levels]
    both = matching_loss(levels, batch, (0.5, 2.0), CPU.average)
    torch.testing.assert_close(both, 0.5 * each[0] + 2 * each[1])
    without = levels[1]._replace(scores=None)
    torch.testing.assert_close(
        matching_loss([levels[0], without], batch, (1.0, 0.0), CPU.average), each[0]
    )


def test_the_targets_expectation_is_the_truth():
    """The gradient of -log softmax is probability minus target, so it holds the target."""
    level, batch = random_case(seed=3)
    scores = level.scores.requires_grad_()
    truth = torch.full_like(batch.flow, 5.0)
    truth[:, 1] = -9.5
    valid = torch.ones_like(batch.valid)
    level = level._replace(start=torch.full_like(level.start, 0.25))
    entropy, count = score_entropy(level, truth, valid)
    assert (count > 0).all()
    (gradient,) = torch.autograd.grad(entropy.sum(), scores)
    target = scores.flatten(1, 2).softmax(1).view_as(scores) - gradient / 4  # four points
    assert target.min() > -1e-12
    axis = torch.arange(-3, 4, dtype=torch.float64)
    found = torch.stack(
        [torch.einsum("buvhw,u->bhw", target, axis), torch.einsum("buvhw,v->bhw", target, axis)], 1
    )
    torch.testing.assert_close(found + 0.25, truth[:, :, :3, :4] / 8)


@pytest.mark.parametrize("rest", [-3.0, 3.0])
def test_the_edge_of_the_radius_is_inside(rest):
    level, batch = random_case()
    level = level._replace(start=None)
    valid = torch.ones_like(batch.valid)
    entropy, count = score_entropy(level, torch.full_like(batch.flow, 8 * rest), valid)
    assert (count > 0).all()
    corner = level.scores[:, int(rest) + 3, int(rest) + 3]
    expected = level.scores.flatten(1, 2).logsumexp(1) - corner
    torch.testing.assert_close(entropy, expected[:, None].expand_as(entropy))
    _, count = score_entropy(level, torch.full_like(batch.flow, 8 * rest * 1.01), valid)
    assert not count.any()


def test_nothing_to_learn_is_no_loss():
    """No valid pixel, and a truth that is no number: zero, with zero gradients."""
    level, batch = random_case()
    scores = level.scores.requires_grad_()
    batch = replace(
        batch, flow=torch.full_like(batch.flow, torch.nan), valid=torch.zeros_like(batch.valid)
    )
    loss = matching_loss([level], batch, (1.0,), CPU.average)
    loss.backward()
    assert loss.item() == 0
    assert not scores.grad.any()


def test_a_saturated_level_still_has_a_gradient():
    """The end-point error has none: that is what the loss is for."""
    level, batch = random_case()
    scores = torch.zeros_like(level.scores, dtype=torch.float32)
    scores[:, 3, 3] = 200
    scores.requires_grad_()
    level = level._replace(scores=scores, start=None)
    matching_loss([level], batch, (1.0,), CPU.average).backward()
    assert scores.grad.abs().max() > 1e-3


# --- the network and the step -------------------------------------------------------------------


def test_scores_are_handed_out_in_training_only():
    model = build(SMALL)
    images = torch.rand(2, 2, 3, 32, 48)
    for level in model.eval()(*images):
        assert level.scores is None
        assert level.start is None
    coarse, fine = model.train()(*images)
    assert coarse.scores.shape == (2, 5, 5, 4, 6)
    assert coarse.start is None
    assert fine.start.shape == (2, 2, 8, 12)
    assert not fine.start.requires_grad
    probability = fine.scores.flatten(1, 2).softmax(1).view_as(fine.scores)
    axis = torch.arange(-1.0, 2.0)
    x = torch.einsum("buvhw,u->bhw", probability, axis) + fine.start[:, 0]
    torch.testing.assert_close(x, fine.matched[:, 0])


def random_batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        images = torch.rand(2, 2, 3, 32, 48, generator=generator)
        flow = torch.full((2, 2, 32, 48), 2.0)
        yield FlowBatch(*images, flow, torch.ones(2, 32, 48, dtype=torch.bool))


def first_loss(config, progress=0.0):
    return Trainer(config, CPU).train_step(random_batches(), progress)["loss"]


@pytest.mark.heavy
def test_the_step_adds_the_loss_with_the_weight_of_the_moment():
    plain = first_loss(replace(CONFIG, loss=replace(CONFIG.loss, matching=())))
    begin, middle, end = (first_loss(CONFIG, progress) - plain for progress in (0.0, 0.5, 1.0))
    assert begin > 0
    assert middle == pytest.approx(begin * 0.165 / 0.3, rel=1e-4)
    assert end == pytest.approx(begin * 0.1, rel=1e-3)


def test_the_weight_falls_evenly_and_stays_within_the_run():
    loss = LossConfig(matching_weight=(0.4, 0.2))
    found = [matching_weight(loss, progress) for progress in (-1, 0, 0.25, 1, 3)]
    assert found == pytest.approx([0.4, 0.4, 0.35, 0.2, 0.2])


def test_the_gradient_reaches_matcher_and_projection():
    model = build(SMALL).train()
    batch = next(random_batches())
    levels = model(batch.image1, batch.image2)
    matching_loss(levels, batch, (0.0, 1.0), CPU.average).backward()
    finest, coarsest = model.levels["4"], model.levels["8"]
    assert all(p.grad is not None and p.grad.any() for p in finest.matcher.parameters())
    assert finest.projection.weight.grad.any()
    assert all(p.grad is None for p in coarsest.parameters())


# --- config -------------------------------------------------------------------------------------


def test_the_papers_recipes_go_without():
    ours = {"every-level", "solid", "figures", "adapt"}
    for name in set(recipe_names()) - ours:
        assert read_recipe(name, []).loss.matching == (), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loss.matching=[1, 1]", r"loss.matching needs one weight per level \(5\), got 2"),
        ("loss.matching=[1, 1, -1, 0, 0]", "loss.matching must not be negative"),
        ("loss.matching_weight=[0.3, -0.1]", "loss.matching_weight must not be negative"),
        ("loss.matching_weight=0.3", "loss.matching_weight must be a list"),
        ("loss.matching_wieght=[1, 1]", "did you mean 'matching_weight'"),
    ],
)
def test_a_wrong_matching_loss_is_named(change, message):
    with pytest.raises(InputError, match=message):
        read_recipe("rendered", [change])


def test_hosts_without_such_scores_go_without():
    ours = TrainConfig("t", (DataConfig("chairs"),), loss=LossConfig(matching=(1, 1, 1, 0, 0)))
    assert ours.loss.matching == (1, 1, 1, 0, 0)
    other = replace(ours, model=ModelConfig(host="pwcnet"))
    assert other.loss == replace(ours.loss, matching=())
    own = LossConfig((1.0,) * 5, (), "summed", (1.0,) * 5)
    assert replace(ours, model=ModelConfig(host="vcn"), loss=own).loss.matching == ()
