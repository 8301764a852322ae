"""The photometric loss is its definition, sees through light and occlusion, and is opt-in."""

from dataclasses import replace

import numpy as np
import pytest
import small_training
import torch
from small_training import CPU, RandomSource

from dicl_flow.config import LossConfig
from dicl_flow.data import FlowBatch, UnlabelledBatch
from dicl_flow.errors import InputError
from dicl_flow.models import LevelFlow
from dicl_flow.ops import front_sources, landing_places
from dicl_flow.training import Trainer
from dicl_flow.training.photometric import (
    bending,
    census_distance,
    find_visible,
    photometric_loss,
)

SIZE = (24, 32)
WEIGHTED = LossConfig(refined=(1.0,), matched=(0.8,), photometric=(1.0, 0.5))


def random_gray(seed=0):
    coarse = torch.rand(1, 1, 12, 16, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, SIZE, mode="bilinear")


def constant_flow(x, y):
    return torch.tensor([x, y]).float()[None, :, None, None].repeat(1, 1, *SIZE)


def moved_pair(seed=0, by=3):
    image = random_gray(seed).repeat(1, 3, 1, 1)
    return image, image.roll(by, -1)


def naive_distance(one, two):
    """Pixel by pixel, neighbour by neighbour, as the definition reads; zero outside the frame."""
    height, width = one.shape
    found = np.zeros_like(one)
    for i, j in np.ndindex(height, width):
        total = 0.0
        for dy, dx in np.ndindex(5, 5):
            y, x = i + dy - 2, j + dx - 2
            inside = 0 <= y < height and 0 <= x < width
            values = []
            for image in (one, two):
                step = 255 * ((image[y, x] if inside else 0) - image[i, j])
                values.append(step / np.sqrt(0.81 + step**2))
            squared = (values[0] - values[1]) ** 2
            total += squared / (0.1 + squared)
        found[i, j] = total / 25
    return found


def test_the_census_distance_is_what_its_definition_says():
    one, two = random_gray(0)[..., :9, :11].double(), random_gray(1)[..., :9, :11].double()
    found = census_distance(one, two, torch.zeros(1, 2, 9, 11, dtype=torch.double))
    expected = naive_distance(one[0, 0].numpy(), two[0, 0].numpy())
    torch.testing.assert_close(found[0], torch.from_numpy(expected))


def test_light_does_not_count_and_motion_does():
    one, two = (image[:, :1] for image in moved_pair())
    inside = (..., slice(2, -2), slice(2, -6))
    right, wrong = constant_flow(3, 0), constant_flow(0, 0)
    assert census_distance(one, two, right)[inside].max() < 1e-3
    assert census_distance(one, 0.2 + 0.5 * two, right)[inside].mean() < 0.05
    assert census_distance(one, two, wrong)[inside].mean() > 0.3


def test_of_two_pixels_that_end_at_one_the_better_fit_is_in_front():
    flow, distance = constant_flow(0, 0), torch.zeros(1, *SIZE)
    flow[0, 0, 6:18, 6:12] = 10.0  # ends at columns 16 to 21, over what rests there
    distance[0, 6:18, 16:22] = 0.5
    visible = find_visible(flow, distance)[0]
    assert not visible[8:16, 18:20].any()
    assert visible[8:16, 6:12].all()
    assert visible[8:16, 24:30].all()
    alike = find_visible(flow, torch.zeros(1, *SIZE))[0]
    assert alike[8:16, 2:30].all()  # undecided: nothing is hidden


def test_what_leaves_the_frame_or_lies_at_its_border_is_not_judged():
    visible = find_visible(constant_flow(6, 0), torch.zeros(1, *SIZE))[0]
    assert visible[2:-2, 2:-6].all()
    assert visible.sum() == visible[2:-2, 2:-6].numel()
    nowhere = find_visible(constant_flow(torch.nan, 0), torch.full((1, *SIZE), torch.nan))
    assert not nowhere.any()


def test_planes_are_smooth_and_bends_at_edges_are_cheap():
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(32.0), indexing="ij")
    plane = torch.stack([3 + 0.2 * x - 0.1 * y, 0.3 * y - 0.05 * x])[None]
    plain, edged = torch.full((1, 3, *SIZE), 0.5), torch.full((1, 3, *SIZE), 0.2)
    edged[..., 16:] = 0.8
    step = plane.clone()
    step[:, 0, :, 16:] += 4
    assert bending(plane, plain) < 1e-4
    assert bending(step, plain) > 0.2
    assert bending(step, edged) < 0.01 * bending(step, plain)


def test_descending_the_loss_finds_the_motion():
    one, two = moved_pair(by=2)
    flow = constant_flow(1.0, 0.4).requires_grad_()
    config = LossConfig(refined=(1.0,), matched=(), photometric=(1.0, 0.5))
    batch = UnlabelledBatch(one, two, torch.zeros_like(flow), torch.zeros(1, *SIZE).bool())
    optimizer = torch.optim.Adam([flow], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        photometric_loss([LevelFlow(flow, flow, None)], batch, config).backward()
        optimizer.step()
    error = (flow.detach() - constant_flow(2, 0)).norm(dim=1)[:, 4:-4, 4:-6]
    assert error.mean() < 0.3  # it was 1.08


def test_each_source_lands_and_the_highest_rank_wins():
    x, y = torch.tensor([[0.0, 1, 1, -1, torch.nan]]), torch.tensor([[0.0, 1, 1, 0, 0]])
    place = landing_places(x, y, (2, 3))
    assert place.tolist() == [[0, 4, 4, -1, -1]]
    rank = torch.tensor([[0, 2**20, 7, 9, 9]])
    # room for as many pixels as there are sources
    assert front_sources(place[:, None], rank).tolist() == [[0, -1, -1, -1, 1]]


def step_of(config, batch):
    trainer = Trainer(replace(small_training.QUICK, loss=config), CPU)
    values = trainer.train_step(iter([batch]), 0.0)
    return values, trainer.weights().tensors


@pytest.fixture(scope="module")
def labelled():
    return next(RandomSource().batches(2, 0, CPU))


def test_it_counts_for_unlabelled_pairs_only_and_only_with_a_weight(labelled):
    unlabelled = UnlabelledBatch(*vars(labelled).values())
    without, expected = step_of(replace(WEIGHTED, photometric=(0.0, 0.0)), labelled)
    for config, batch in (
        (WEIGHTED, labelled),
        (replace(WEIGHTED, photometric=(0.0, 0.0)), unlabelled),
    ):
        values, tensors = step_of(config, batch)
        assert values == without
        assert all(tensors[name].equal(expected[name]) for name in expected)
    values, tensors = step_of(WEIGHTED, unlabelled)
    assert values["loss"] > without["loss"] + 0.01
    assert any(not tensors[name].equal(expected[name]) for name in expected)


def test_a_step_needs_no_labels(labelled):
    nowhere = torch.zeros_like(labelled.valid)
    batch = UnlabelledBatch(labelled.image1, labelled.image2, labelled.flow, nowhere)
    values, _ = step_of(WEIGHTED, batch)
    assert values["gradient_norm"] > 0
    still, _ = step_of(replace(WEIGHTED, photometric=(0.0, 0.0)), batch)
    assert still["gradient_norm"] == 0


def test_a_batch_stays_unlabelled_on_its_way(labelled):
    batch = UnlabelledBatch(*vars(labelled).values())
    assert type(batch.to("cpu")) is UnlabelledBatch
    assert type(labelled.to("cpu")) is FlowBatch
    trainer = Trainer(replace(small_training.QUICK, loss=WEIGHTED), CPU)
    assert trainer._key(batch) != trainer._key(labelled)  # recorded separately


def test_a_negative_weight_is_refused():
    with pytest.raises(InputError, match=r"loss\.photometric must not be negative"):
        LossConfig(photometric=(1.0, -0.1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_steps_have_the_loss_of_plain_ones(labelled):
    """Labelled and unlabelled batches by turns: each kind has a recording of its own."""
    from dicl_flow.training import Processes

    device, found = torch.device("cuda"), {}
    unlabelled = UnlabelledBatch(*vars(labelled).values())
    for backend in ("plain", "fused"):
        optimizer = replace(small_training.QUICK.optimizer, learning_rate=1e-12)
        config = replace(small_training.QUICK, loss=WEIGHTED, backend=backend, optimizer=optimizer)
        trainer = Trainer(config, Processes(device))
        batches = iter([labelled.to(device), unlabelled.to(device)] * 3)
        found[backend] = [trainer.train_step(batches, 0.0)["loss"] for _ in range(5)]
    assert found["fused"] == pytest.approx(found["plain"], rel=2e-3)
    assert found["fused"][1] > found["fused"][0] + 0.01
