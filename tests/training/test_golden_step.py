"""One training step equals the authors', stated without our code in straight_step.py.

A step of the whole network takes a slow core fifteen seconds in float64: those tests are `slow`.
The others check its parts: loss and gradients of ten flows, and the trainer's step of a tiny
network. Gradients of the network itself are checked in test_golden.py.
"""

from copy import deepcopy

import numpy as np
import pytest
import straight_step
import torch
from conftest import TINY_LEVEL
from small_training import CPU

from dicl_flow.data import FlowBatch
from dicl_flow.models import LevelFlow
from dicl_flow.training import read_recipe
from dicl_flow.training.loss import training_loss
from dicl_flow.training.trainer import Trainer
from dicl_flow.weights import encode_weights
from dicl_flow.weights.legacy import import_legacy, rename

# the recipe of KITTI as it is, except for the size of the batch
CONFIG = read_recipe("kitti", ["batch=2", "augment.crop=[128,128]"])
LEVEL = [TINY_LEVEL, "model.matcher=dot", "loss.matched=[0.8]", "loss.refined=[1.0]"]
TINY = read_recipe("kitti", ["batch=2", "augment.crop=[16,32]", *LEVEL])


@pytest.fixture(scope="module")
def golden():
    with np.load(straight_step.PATH) as archive:
        return dict(archive)


@pytest.mark.heavy
def test_loss_and_gradients_of_ten_flows_are_the_authors():
    batch = our_batch(torch.float64)
    generator = torch.Generator().manual_seed(0)
    levels = []
    for side in (2, 4, 8, 16, 32):
        values = 20 * torch.randn(2, 2, 2, side, side, generator=generator)
        matched, refined = values.double().requires_grad_()
        levels.append(LevelFlow(matched, refined, entropy=matched[:, :1]))
    flows = [flow for level in reversed(levels) for flow in (level.refined, level.matched)]
    terms = straight_step.loss_terms(flows, batch.flow, batch.valid)
    expected = sum(terms) / len(terms)
    gradients = torch.autograd.grad(expected, flows)
    for name in ("chairs-1", "chairs-2", "things", "sintel", "kitti"):
        loss = training_loss(levels, batch, read_recipe(name, []), average=lambda number: number)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        for ours, theirs in zip(torch.autograd.grad(loss, flows), gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)


@pytest.mark.heavy
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_the_step_of_a_trainer_is_the_authors(dtype, tolerance):
    """Against their loss of the same network's flows, and their Adam."""
    trainer = Trainer(TINY, CPU)
    trainer.model.to(dtype)
    reference = deepcopy(trainer.model).double().train()
    values = trainer.train_step(iter([our_batch(dtype, (16, 32), 1 / 50)]), progress=0.0)

    batch = our_batch(torch.float64, (16, 32), 1 / 50)
    (level,) = reference(2 * batch.image1 - 1, 2 * batch.image2 - 1)
    flows, weights, reach = (level.refined, level.matched), (1.0, 0.8), (4, 4)
    terms = straight_step.loss_terms(flows, batch.flow, batch.valid, weights, reach)
    loss = sum(terms) / len(terms)
    loss.backward()
    assert values["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert values["learning_rate"] == straight_step.RATE
    for ours, theirs in zip(trainer.model.parameters(), reference.parameters(), strict=True):
        first, second, change = straight_step.adam(theirs.grad)
        found = trainer.optimizer.state[ours]
        close(ours.grad, theirs.grad, tolerance)
        close(found["exp_avg"], first, tolerance)
        close(found["exp_avg_sq"], second, 2 * tolerance)
        close(ours.detach(), theirs.detach() - change, tolerance)


@pytest.mark.slow
def test_a_step_of_the_whole_network_gives_the_golden_numbers(golden, checkpoint, tmp_path):
    loss, step = our_step(checkpoint, tmp_path, torch.float64)
    assert loss == pytest.approx(golden["loss"], rel=1e-8)  # a trainer adds losses in float32
    for name, tensors in step.items():
        # batch norm over two values magnifies rounding: 1.6e-8 on an ARM processor
        assert deviations(tensors, golden[name]).max() < 5e-8, name


@pytest.mark.slow
def test_so_it_does_in_float32_as_far_as_that_goes(golden, checkpoint, tmp_path):
    """Batch norm over the two values of the coarsest map magnifies rounding."""
    loss, step = our_step(checkpoint, tmp_path, torch.float32)
    assert loss == pytest.approx(golden["loss"], rel=2e-3)
    assert np.median(deviations(step["gradients"], golden["gradients"])) < 0.02
    assert np.median(deviations(step["state"], golden["state"])) < 1e-4


@pytest.mark.slow
def test_the_golden_numbers_are_those_of_the_straight_line(golden):
    again = straight_step.numbers(straight_step.take_step())
    assert again.keys() == golden.keys()
    for name, found in again.items():
        np.testing.assert_allclose(found, golden[name], rtol=1e-7, atol=1e-12, err_msg=name)
    assert sum(golden["terms"]) / 10 == pytest.approx(golden["loss"], rel=1e-12)


def deviations(tensors, golden):
    """Of both numbers of each tensor from the golden ones, relative to its norm."""
    found = np.array([straight_step.describe(key, tensor) for key, tensor in tensors.items()])
    return np.abs(found - golden) / golden[:, :1]


def close(found, expected, tolerance):
    assert (found - expected).norm() <= tolerance * expected.norm() + 1e-12


def our_batch(dtype, size=(128, 128), motion=1.0):
    """The batch of the straight line, or its upper left corner with a part of the motion."""
    image1, image2, flow, valid = map(torch.from_numpy, straight_step.batch())
    images = [image.permute(0, 3, 1, 2).to(dtype) / 255 for image in (image1, image2)]
    corner = [tensor[..., : size[0], : size[1]] for tensor in (*images, motion * flow, valid)]
    return FlowBatch(*corner[:2], corner[2].to(dtype), corner[3])


def our_step(checkpoint, folder, dtype):
    """The step of a real trainer, as `straight_step.take_step` returns it."""
    start = folder / "start.safetensors"
    start.write_bytes(encode_weights(import_legacy(checkpoint)))
    trainer = Trainer(CONFIG, CPU, start)
    trainer.model.to(dtype)
    values = trainer.train_step(iter([our_batch(dtype)]), progress=0.0)
    state = trainer.model.state_dict()
    parameters = dict(trainer.model.named_parameters())
    moments = {key: trainer.optimizer.state[value] for key, value in parameters.items()}
    keys = {key: rename(key) for key in straight_step.formula.state_dict()}
    trained = {key: ours for key, ours in keys.items() if straight_step.is_trained(key)}
    return values["loss"], {
        "gradients": {key: parameters[ours].grad for key, ours in trained.items()},
        "first_moments": {key: moments[ours]["exp_avg"] for key, ours in trained.items()},
        "second_moments": {key: moments[ours]["exp_avg_sq"] for key, ours in trained.items()},
        "state": {key: state[keys[key]] for key in keys if straight_step.not_counter(key)},
    }
