"""What must hold for any frames: symmetries, still pairs, batches, finite numbers."""

import numpy as np
import pytest
from conftest import SMALL
from hypothesis import given, settings
from hypothesis import strategies as st

from campaigns.known_motion import TURNS
from dicl_flow.data.packaged import demo_pairs
from dicl_flow.estimation.estimator import FlowEstimator, load
from dicl_flow.files import read_image
from dicl_flow.models import build

pytestmark = pytest.mark.heavy

SIDES = st.integers(1, 40)


@pytest.fixture(scope="module")
def small():
    return FlowEstimator(build(SMALL), "cpu", "fp32")


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


MEASURED = 0.23
"""px, the largest median difference that `python -m campaigns.numbers --only turned` has found."""


@pytest.mark.slow
def test_mirrored_frames_have_mirrored_flow():
    bunny = demo_pairs()[0]
    first, second = (read_image(path)[:256, :256] for path in (bunny.image1, bunny.image2))
    estimator, (turn, back) = load(device="cpu", precision="fp32"), TURNS["mirrored left to right"]
    turned = back(estimator(turn(first), turn(second)).flow)
    difference = np.hypot(*np.moveaxis(turned - estimator(first, second).flow, -1, 0))
    assert np.median(difference) <= 2 * MEASURED
