"""The simple trackers: a picture that slides, a thing that covers it, forward and backward."""

import cv2
import numpy as np
import pytest
import torch

from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator, FlowSequence
from dicl_flow.models import build
from dicl_flow.tracking import baselines

SIZE = (48, 64)
STEP = (3, 1)  # px per frame


@pytest.fixture(scope="module")
def images():
    """Five frames of a wall that slides by `STEP`; a square covers its middle in frame 2."""
    noise = np.random.default_rng(0).integers(0, 255, (200, 240, 3), np.uint8)
    wall = cv2.GaussianBlur(noise, (0, 0), 1.5)
    wall = cv2.normalize(wall, None, 0, 255, cv2.NORM_MINMAX)
    height, width = 144, 192
    frames = []
    for number in range(5):
        left, top = 20 - STEP[0] * number, 20 - STEP[1] * number
        frames.append(np.ascontiguousarray(wall[top : top + height, left : left + width]))
    frames[2] = frames[2].copy()
    frames[2][62:82, 86:106] = 255
    return frames


@pytest.fixture
def exact_flow(monkeypatch):
    """Replace the network: frames know their number, and the flow is that of the wall.

    In frame 2, a still square covers the middle: what is below it has no way back.
    """
    from dicl_flow.config import LevelConfig, ModelConfig

    calls = []

    def prepare(self, frame):
        return torch.tensor([int(frame[0, 0, 0])])

    def match(self, before, after):
        source, target = int(before), int(after)
        calls.append((source, target))
        packed = torch.zeros(1, 6, *SIZE)
        for first, number in ((0, target - source), (3, source - target)):
            packed[:, first], packed[:, first + 1] = STEP[0] * number, STEP[1] * number
        if target == 2:
            packed[:, 3:5, 18:34, 24:44] = 30.0  # the square comes from elsewhere
        if source == 2:
            packed[:, 0:2, 18:34, 24:44] = 30.0
        return packed

    monkeypatch.setattr(FlowSequence, "prepare", prepare)
    monkeypatch.setattr(FlowSequence, "match", match)
    torch.manual_seed(0)
    config = ModelConfig(levels=(LevelConfig(4, 1, ((8, 1),)),))
    return FlowEstimator(build(config), "cpu"), calls


def numbered():
    return [np.full((*SIZE, 3), number, np.uint8) for number in range(5)]


QUERIES = np.array([[0, 5, 5], [2, 50, 40], [0, 28, 24], [4, 40, 26], [0, 58, 10]], np.float32)


def expected(queries):
    """(N, 5, 2) where the wall goes."""
    frames = np.arange(5)[None] - queries[:, :1]
    return queries[:, None, 1:] + frames[..., None] * np.array(STEP)


@pytest.mark.parametrize("method", [baselines.chained, baselines.direct])
def test_points_follow_the_flow_in_both_directions(exact_flow, method):
    queries = QUERIES[[0, 1]]
    tracks = method(exact_flow[0], numbered(), queries)
    np.testing.assert_allclose(tracks.points, expected(queries), atol=1e-4)
    assert tracks.visible.all()
    assert tracks.size == SIZE
    assert np.isnan(tracks.error).all()


def test_a_chain_ends_where_a_point_is_hidden_and_the_direct_flow_finds_it_again(exact_flow):
    estimator, _ = exact_flow
    chained = baselines.chained(estimator, numbered(), QUERIES[2:4])
    direct = baselines.direct(estimator, numbered(), QUERIES[2:4])
    assert chained.visible.tolist() == [[True, True, False, False, False], [False] * 3 + [True] * 2]
    assert direct.visible.tolist() == [[True, True, False, True, True]] * 2
    assert chained.interval.tolist() == [[0, 1, 1, 1, 1], [-1, -1, -1, -1, 0]]
    assert direct.interval.tolist() == [[0, 1, 2, 3, 4], [-4, -3, -2, -1, 0]]


def test_a_point_that_leaves_the_frame_is_hidden(exact_flow):
    tracks = baselines.chained(exact_flow[0], numbered(), QUERIES[4:])
    assert tracks.visible.tolist() == [[True, True, False, False, False]]


def test_queries_of_one_frame_share_its_flows(exact_flow):
    estimator, calls = exact_flow
    queries = np.array([[0, 5, 5], [0, 9, 9], [3, 20, 9]], np.float32)
    baselines.chained(estimator, numbered(), queries)
    forward = [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert calls == [*forward, (3, 2), (2, 1), (1, 0)]
    calls.clear()
    baselines.direct(estimator, numbered(), queries)
    assert calls == [(0, 1), (0, 2), (0, 3), (0, 4), (3, 4), (3, 2), (3, 1), (3, 0)]


def test_lucas_and_kanades_method_follows_a_wall_and_loses_what_is_covered(images):
    queries = np.array([[0, 30, 30], [4, 160, 120], [0, 90, 70]], np.float32)
    tracks = baselines.lucas_kanade(images, queries)
    assert tracks.visible[:2].all()
    np.testing.assert_allclose(tracks.points[:2], expected(queries)[:2], atol=0.3)
    assert tracks.visible[2, 1]
    assert not tracks.visible[2, 2:].any()


def test_a_network_is_followed_from_the_frame_of_the_query(images, tiny_weights):
    from dicl_flow.estimation.estimator import load

    estimator = load(tiny_weights, device="cpu")
    flow = estimator(images[1], images[2]).flow
    for method in (baselines.chained, baselines.direct):
        tracks = method(estimator, images[:3], np.array([[1, 10, 12], [1, 33, 20]], np.float32))
        moved = tracks.points[:, 2] - tracks.points[:, 1]
        np.testing.assert_allclose(moved, flow[[12, 20], [10, 33]], atol=1e-3)


@pytest.mark.parametrize(
    ("queries", "told"),
    [
        ([[0, 1]], r"must be \(N, 3\)"),
        ([[5, 1, 1]], "from 0 to 4"),
        ([[-1, 1, 1]], "from 0 to 4"),
        ([[0.5, 1, 1]], "whole numbers"),
        ([[0, 192, 1]], "outside the frames, which are 192x144"),
    ],
)
def test_queries_outside_are_refused(images, queries, told):
    with pytest.raises(InputError, match=told):
        baselines.lucas_kanade(images, np.array(queries, np.float32))
