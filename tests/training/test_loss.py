"""The pyramid loss is its definition: weights, reach, valid pixels, full size, exponent."""

import numpy as np
import pytest
import torch

from dicl_flow.config import LossConfig
from dicl_flow.errors import InputError
from dicl_flow.models import LevelFlow
from dicl_flow.training import pyramid_loss


def test_loss_equals_its_definition():
    generator = torch.Generator().manual_seed(0)
    truth = 30 * torch.randn(2, 2, 8, 12, generator=generator)
    valid = torch.rand(2, 8, 12, generator=generator) > 0.3
    levels = [LevelFlow(*torch.randn(2, 2, 2, 8, 12, generator=generator), None) for _ in range(2)]
    config = LossConfig(refined=(0.5, 1.0), matched=(0.4, 0.8))
    loss = pyramid_loss(levels, truth, valid, (20, 50), config)
    terms = []
    for level, reach, refined, matched in zip(levels, (20, 50), (0.5, 1), (0.4, 0.8), strict=True):
        for flow, weight in ((level.refined, refined), (level.matched, matched)):
            error = np.hypot(*np.moveaxis((flow - truth).numpy(), 1, 0))
            within = (np.abs(truth.numpy()) <= reach).all(1)
            terms.append(weight * (error * within)[valid.numpy()].mean())
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)


def test_a_power_of_the_error_can_be_trained():
    truth, valid = torch.full((1, 2, 8, 8), 3.0), torch.ones(1, 8, 8, dtype=torch.bool)
    flow = LevelFlow(torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 2, 2), torch.zeros(1, 1, 2, 2))
    loss = pyramid_loss([flow], truth, valid, (99,), LossConfig((2.0,), (1.0,), exponent=0.5))
    assert loss.item() == pytest.approx(1.5 * (18**0.5 + 0.01) ** 0.5, rel=1e-5)
    with pytest.raises(InputError, match=r"loss\.exponent must be in"):
        LossConfig(exponent=2)


def test_loss_is_at_full_size_in_pixels():
    flow = torch.ones(1, 2, 2, 3)  # one pixel at stride 4
    level = LevelFlow(flow, flow, None)
    truth = torch.full((1, 2, 8, 12), 4.0)
    config = LossConfig(refined=(1.0,), matched=())
    assert pyramid_loss([level], truth, torch.ones(1, 8, 12).bool(), (12,), config) < 1e-6
    assert pyramid_loss([level], truth + 3, torch.ones(1, 8, 12).bool(), (12,), config) > 4


def test_motion_beyond_reach_is_zero_but_counts_in_the_mean():
    truth = torch.zeros(1, 2, 1, 2)
    truth[0, 0, 0, 1] = 100
    level = LevelFlow(torch.ones(1, 2, 1, 2), None, None)
    config = LossConfig(refined=(), matched=(1.0,))
    loss = pyramid_loss([level], truth, torch.ones(1, 1, 2).bool(), (12,), config)
    assert loss.item() == pytest.approx(np.sqrt(2) / 2)


def test_no_valid_pixel_is_no_error():
    level = LevelFlow(torch.ones(1, 2, 1, 2), None, None)
    config = LossConfig(refined=(), matched=(1.0,))
    none = torch.zeros(1, 1, 2).bool()
    assert pyramid_loss([level], torch.zeros(1, 2, 1, 2), none, (12,), config) == 0
