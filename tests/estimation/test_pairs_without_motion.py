"""Equal frames and frames of one colour have no flow."""

from dataclasses import replace

import fake_trees
import numpy as np
import pytest
import torch
from conftest import SMALL

from dicl_flow import FlowSequence
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.estimation.pipeline import clear_uninformative
from dicl_flow.models import build

(FRAME, MOVED), _ = fake_trees.moving_frames(2, (40, 56))
BLACK, GREY = np.zeros_like(FRAME), np.full_like(FRAME, 90)
GREY[5, 7, 1] = 91  # a grey level is still no texture


def small(**changes):
    torch.manual_seed(0)
    return FlowEstimator(build(replace(SMALL, **changes)), "cpu", "fp32", "fast")


@pytest.mark.parametrize("padding", ["replicate", "white", "resize"])
def test_a_frame_of_one_colour_has_no_flow_and_no_confidence(padding):
    result = small(padding=padding)([BLACK, GREY, FRAME], [BLACK, FRAME, BLACK], backward=True)
    for found in (result, result.backward):
        assert not found.flow.any()
        assert not found.confidence.any()


def test_the_same_frame_twice_does_not_move():
    result = small()(FRAME, FRAME)
    assert not result.flow.any()
    assert result.confidence.mean() > 0


def test_each_pair_of_a_batch_has_a_gate_of_its_own():
    first, second = np.stack([FRAME, BLACK, FRAME]), np.stack([MOVED, MOVED, FRAME])
    batch = small()(first, second)
    assert [bool(pair.flow.any()) for pair in batch] == [True, False, False]
    assert [bool(pair.confidence.any()) for pair in batch] == [True, False, True]


def test_a_sequence_is_gated_too():
    sequence = FlowSequence(small(), backward=True)
    results = [sequence.push(frame) for frame in (FRAME, FRAME, MOVED, BLACK)][1:]
    moving = [[bool(way.flow.any()) for way in (r, r.backward)] for r in results]
    assert moving == [[False, False], [True, True], [False, False]]


def test_other_pairs_pass_bit_by_bit():
    """Two grey levels are a texture, and one pixel that differs makes two frames."""
    answer, image = torch.randn(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    image[:, 2, 3, 4] = 2 * 2 / 255
    other = image.clone()
    other[:, 0, 0, 0] += 1e-3
    assert torch.equal(clear_uninformative(answer, image, other), answer)
    assert not torch.equal(clear_uninformative(answer, image, image), answer)
