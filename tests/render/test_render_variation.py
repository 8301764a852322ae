"""Flips, the eraser and colour changes of rendered pairs keep frames and flow consistent."""

from dataclasses import replace

import pytest
import torch

from dicl_flow.config import AugmentConfig
from dicl_flow.data import FlowBatch
from dicl_flow.render import augment_batch
from dicl_flow.render.shapes import Dice

NOTHING = AugmentConfig.crop_only((32, 48))


@pytest.fixture
def batch():
    torch.manual_seed(0)
    image1, image2 = torch.rand(2, 64, 3, 32, 48).unbind()
    return FlowBatch(image1, image2, torch.randn(64, 2, 32, 48), torch.rand(64, 32, 48) > 0.1)


def varied(batch, **changes):
    return augment_batch(batch, replace(NOTHING, **changes), Dice(torch.device("cpu"), 1))


def test_without_chances_nothing_changes(batch):
    for before, after in zip(vars(batch).values(), vars(varied(batch)).values(), strict=True):
        torch.testing.assert_close(after, before)


@pytest.mark.parametrize(("axis", "key"), [(0, "horizontal_flip"), (1, "vertical_flip")])
def test_a_flip_mirrors_frames_and_flow(batch, axis, key):
    after = varied(batch, **{key: 1.0})
    sign = torch.tensor([-1.0, 1.0] if axis == 0 else [1.0, -1.0])[:, None, None]
    torch.testing.assert_close(after.image2, batch.image2.flip(-1 - axis))
    torch.testing.assert_close(after.flow, batch.flow.flip(-1 - axis) * sign)
    assert torch.equal(after.valid, batch.valid.flip(-1 - axis))
    some = (varied(batch, **{key: 0.5}).flow == batch.flow).flatten(1).all(1)
    assert 16 < some.sum() < 48


def test_the_eraser_hides_parts_of_frame_2_only(batch):
    after = varied(batch, eraser=0.5, eraser_count=(1, 1), eraser_size=(4, 8))
    assert torch.equal(after.image1, batch.image1)
    hidden = (after.image2 != batch.image2).any(1)
    area = hidden.flatten(1).sum(1)
    assert 16 < (area > 0).sum() < 48
    assert area.max() <= 81
    colors = after.image2.permute(0, 2, 3, 1)[hidden]
    means = batch.image2.mean((2, 3))[:, None, None].expand(-1, 32, 48, -1)[hidden]
    torch.testing.assert_close(colors, means)


def test_colours_change_alike_in_both_frames_or_apart(batch):
    same = replace(batch, image2=batch.image1)
    colors = {"color": 1.0, "asymmetric_color": 0.0}
    alike = varied(same, **colors)
    assert torch.equal(alike.image1, alike.image2)
    assert (alike.image1 - same.image1).abs().flatten(1).mean(1).min() > 0.01
    apart = varied(same, **{**colors, "asymmetric_color": 1.0})
    assert (apart.image1 - apart.image2).abs().flatten(1).mean(1).min() > 0.01
    assert torch.equal(apart.flow, batch.flow)


@pytest.mark.parametrize("change", ["contrast", "saturation", "hue"])
def test_grey_frames_keep_their_mean(batch, change):
    gray = torch.full_like(batch.image1, 0.4)
    only = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, change: 0.3}
    after = varied(replace(batch, image1=gray), color=1.0, **only)
    torch.testing.assert_close(after.image1, gray)
