"""A sequence gives the flow of its pairs and computes the features of each frame once."""

from dataclasses import replace
from itertools import pairwise

import fake_trees
import numpy as np
import pytest
import torch
from conftest import SMALL, TINY, needs_bf16

import dicl_flow
from dicl_flow import FlowSequence
from dicl_flow.accelerated.settings import network_bytes
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.estimation.inputs import image_batch
from dicl_flow.models import build
from dicl_flow.ops import resize

FRAMES, _ = fake_trees.moving_frames(4, (40, 56))
PLAIN_BYTES = network_bytes(torch.float32, torch.device("cpu"), fast=False)
# A flow of 10 px, summed up otherwise in float32, may differ by some of its last bits.
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}


def small(backend, precision="fp32", memory_limit=None, **changes):
    torch.manual_seed(0)
    return FlowEstimator(build(replace(SMALL, **changes)), "cpu", precision, backend, memory_limit)


@pytest.mark.parametrize("backend", ["plain", "fast"])
@pytest.mark.parametrize(
    "changes", [{}, {"padding": "white"}, {"padding": "resize", "max_pixels": 32 * 48}]
)
def test_a_sequence_gives_the_flow_of_its_pairs(backend, changes):
    estimator = small(backend, **changes)
    sequence = FlowSequence(estimator)
    assert sequence.push(FRAMES[0]) is None
    for before, frame in pairwise(FRAMES):
        found, expected = sequence.push(frame), estimator(before, frame)
        np.testing.assert_allclose(found.flow, expected.flow, **ROUNDING)
        np.testing.assert_allclose(found.confidence, expected.confidence, **ROUNDING)


@needs_bf16
@pytest.mark.parametrize("backend", ["plain", "fast"])
def test_reduced_precision_stays_what_it_is(backend):
    estimator = small(backend, "bf16")
    sequence = FlowSequence(estimator)
    sequence.push(FRAMES[0])
    difference = np.abs(sequence.push(FRAMES[1]).flow - estimator(*FRAMES[:2]).flow)
    assert difference.mean() < 1e-3


def same_both_ways(found, expected, **tolerance):
    for one, other in ((found, expected), (found.backward, expected.backward)):
        np.testing.assert_allclose(one.flow, other.flow, **tolerance)
        np.testing.assert_allclose(one.confidence, other.confidence, **tolerance)
        np.testing.assert_array_equal(one.occlusion, other.occlusion)


@pytest.mark.parametrize("backend", ["plain", "fast"])
def test_with_the_way_back_it_gives_both_ways_of_its_pairs(backend):
    estimator = small(backend, padding="resize", max_pixels=32 * 48)
    sequence = FlowSequence(estimator, backward=True)
    assert sequence.push(FRAMES[0]) is None
    for pair in pairwise(FRAMES):
        same_both_ways(sequence.push(pair[1]), estimator(*pair, backward=True), **ROUNDING)


@pytest.mark.parametrize("backward", [False, True])
def test_the_feature_net_sees_each_frame_once(backward):
    sequence, seen = FlowSequence(small("plain"), backward=backward), []
    features = sequence.estimator.model.features
    features.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    for frame in FRAMES:
        sequence.push(frame)
    assert seen == [1] * len(FRAMES)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.heavy
def test_frames_too_large_for_the_memory_are_tiled_as_pairs_are(backward):
    frames, _ = fake_trees.moving_frames(2, (64, 400))
    estimator = small("plain", memory_limit=64 * 256 * PLAIN_BYTES, matcher="dot")  # a quick net
    assert estimator.tile(torch.zeros(1, 3, 64, 400)) == (64, 256)
    sequence = FlowSequence(estimator, backward=backward)
    sequence.push(frames[0])
    found, expected = sequence.push(frames[1]), estimator(*frames, backward=backward)
    np.testing.assert_array_equal(found.flow, expected.flow)
    if backward:
        same_both_ways(found, expected)


def sharpness_of(estimator, *frames):
    """One minus the entropy of the finest match, from the network itself."""
    images = [torch.tensor(frame).permute(2, 0, 1)[None] / 127.5 - 1 for frame in frames]
    (height, width), multiple = images[0].shape[-2:], estimator.model.config.pad_multiple
    edges = (0, -width % multiple, 0, -height % multiple)
    padded = [torch.nn.functional.pad(image, edges, mode="replicate") for image in images]
    with torch.no_grad():
        entropy = estimator.model(*padded)[-1].entropy
    return 1 - resize(entropy, padded[0].shape[-2:])[0, 0, :height, :width]


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["plain", "fast"])
@pytest.mark.parametrize("backward", [False, True])
def test_the_sharpness_of_the_match_follows_flow_and_confidence(backend, backward):
    estimator, plain = small(backend), small("plain")
    usual = FlowSequence(estimator, backward=backward)
    sharp = FlowSequence(estimator, backward=backward, sharpness=True).fresh()
    for frame in FRAMES[:2]:
        without, found = usual.advance(frame), sharp.advance(frame)
    ways = [FRAMES[:2], FRAMES[1::-1]][: 1 + backward]
    assert found.shape[1] == 4 * len(ways)
    assert torch.equal(torch.cat([way[:, :3] for way in found.split(4, 1)], 1), without)
    for way, frames in zip(found.split(4, 1), ways, strict=True):
        np.testing.assert_allclose(way[0, 3], sharpness_of(plain, *frames), **ROUNDING)
        assert way[0, 3].min() < way[0, 3].max() <= 1
    assert not sharp.advance(np.zeros_like(FRAMES[0])).any()  # nothing can be matched


@pytest.mark.heavy
@pytest.mark.parametrize("quality", ["fast", "best"])
def test_the_sharpness_is_that_of_the_last_pass(quality):
    torch.manual_seed(0)
    estimator = FlowEstimator(build(replace(SMALL, padding="resize")), "cpu", quality=quality)
    sequence = FlowSequence(estimator, sharpness=True)
    sequence.advance(FRAMES[0])
    found = sequence.advance(FRAMES[1])
    images = (image_batch(frame)[0] for frame in FRAMES[:2])
    entropy = estimator.pipeline.measure(*images)[1][:, 0]
    np.testing.assert_allclose(found[:, 3], 1 - entropy, **ROUNDING)


@pytest.mark.heavy
@pytest.mark.parametrize("backward", [False, True])
def test_the_sharpness_in_tiles_is_near_that_of_the_whole(backward):
    frames, _ = fake_trees.moving_frames(2, (32, 272))
    found = []
    for memory_limit in (32 * 256 * PLAIN_BYTES, None):
        estimator = small("plain", memory_limit=memory_limit, matcher="dot")
        sequence = FlowSequence(estimator, backward=backward, sharpness=True)
        sequence.advance(frames[0])
        found.append(sequence.advance(frames[1])[:, 3::4])
    tiled, whole = found
    assert tiled.shape[1] == 1 + backward
    assert 0 < (tiled - whole).abs().mean() < 0.1 * whole.mean()


def test_after_a_restart_the_next_frame_is_a_first_one():
    sequence = FlowSequence(small("fast"))
    sequence.push(FRAMES[0])
    sequence.restart()
    assert sequence.push(FRAMES[2]) is None
    expected = sequence.estimator(FRAMES[2], FRAMES[3]).flow
    np.testing.assert_allclose(sequence.push(FRAMES[3]).flow, expected, **ROUNDING)


def test_frames_of_another_size_and_batches_are_refused():
    sequence = FlowSequence(small("fast"))
    sequence.push(FRAMES[0])
    with pytest.raises(InputError, match="one size, got 50x40 after 56x40"):
        sequence.push(FRAMES[1][:, :50])
    with pytest.raises(InputError, match="one frame at a time"):
        sequence.push(np.stack(FRAMES))


@pytest.mark.heavy
def test_the_packaged_weights_reuse_features():
    estimator = dicl_flow.load(device="cpu", precision="fp32")
    sequence = FlowSequence(estimator)
    sequence.push(FRAMES[0])
    found = sequence.push(FRAMES[1])
    np.testing.assert_allclose(found.flow, estimator(*FRAMES[:2]).flow, **ROUNDING)


def matched_together(estimator, monkeypatch, together):
    """Packed estimates of three pairs, one by one and in batches of `together`."""
    sequence = FlowSequence(estimator, backward=True)
    prepared = [sequence.prepare(frame[:24, :32]) for frame in FRAMES]
    pairs = [(prepared[one], prepared[two]) for one, two in ((0, 1), (3, 1), (0, 2))]
    monkeypatch.setattr(estimator.engine, "pairs_together", lambda: together)
    return [sequence.match(*pair) for pair in pairs], list(sequence.match_pairs(pairs))


@pytest.mark.parametrize("backend", ["plain", "fast"])
@pytest.mark.parametrize("quality", ["normal", "best"])
def test_pairs_matched_as_a_batch_are_those_matched_alone(backend, quality, monkeypatch):
    torch.manual_seed(0)
    model = build(replace(TINY, padding="resize"))
    estimator = FlowEstimator(model, "cpu", "fp32", backend, quality=quality)
    alone, found = matched_together(estimator, monkeypatch, 2)
    assert [packed.shape for packed in found] == [(1, 6, 24, 32)] * 3
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one, other, **ROUNDING)


def test_a_cpu_matches_one_pair_at_a_time(monkeypatch):
    estimator = FlowEstimator(build(TINY), "cpu", "fp32", "plain")
    alone, found = matched_together(estimator, monkeypatch, estimator.engine.pairs_together())
    assert all(map(torch.equal, alone, found))


def test_a_batch_is_no_larger_than_the_memory_allows(monkeypatch):
    estimator = small("plain", memory_limit=2 * 64 * 64 * PLAIN_BYTES)
    monkeypatch.setattr(estimator.engine, "pairs_together", lambda: 8)
    assert estimator.pipeline.tiles.together((64, 64)) == 2
    assert estimator.pipeline.tiles.together((512, 512)) == 1
