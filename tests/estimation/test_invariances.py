"""For any frames: symmetries hold, still pairs do not move, a batch equals its pairs."""

import json

import numpy as np
import pytest
from conftest import SMALL
from hypothesis import given, settings
from hypothesis import strategies as st

from campaigns.known_motion import TURNS, lengths, moving_film, turned_difference
from campaigns.report import REPOSITORY
from dicl_flow.estimation.estimator import FlowEstimator, load
from dicl_flow.models import build

pytestmark = pytest.mark.heavy

SIDES = st.integers(1, 40)


@pytest.fixture(scope="module")
def small():
    return FlowEstimator(build(SMALL), "cpu", "fp32")


@pytest.fixture(scope="module")
def packaged():
    return load(device="cpu", precision="fp32")


def noise(seed, count, height, width):
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 99), height=SIDES, width=SIDES)
def test_a_batch_gives_what_its_pairs_give(small, seed, height, width):
    first, second = noise(seed, 3, height, width), noise(seed + 1, 3, height, width)
    together = small(list(first), list(second))
    for number, result in enumerate(together):
        alone = small(first[number], second[number])
        np.testing.assert_allclose(result.flow, alone.flow, atol=1e-4)
        np.testing.assert_allclose(result.confidence, alone.confidence, atol=1e-4)
        assert np.isfinite(alone.flow).all()


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 99), height=SIDES, width=SIDES)
def test_equal_frames_do_not_move(small, seed, height, width):
    (frame,) = noise(seed, 1, height, width)
    assert not small(frame, frame.copy()).flow.any()


@pytest.mark.slow
@settings(max_examples=6, deadline=None, derandomize=True)
@given(x=st.integers(0, 256), y=st.integers(0, 128), turn=st.sampled_from(sorted(TURNS)))
def test_turned_frames_have_turned_flow(packaged, x, y, turn):
    frames = moving_film(x, y)
    flow = packaged(*frames).flow
    assert lengths(flow).mean() > 1
    difference = turned_difference(packaged, frames, flow, turn)
    assert np.median(difference) <= 2 * measured(turn)


def measured(turn):
    """Return the largest median difference that the campaign has found."""
    report = json.loads((REPOSITORY / "docs/reliability/known-motion.json").read_text())
    return report["parts"]["turned"][turn]["median_px"]
