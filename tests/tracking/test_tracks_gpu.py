"""On a CUDA device pairs are matched as a batch, and tracks are those of a CPU."""

import fake_trees
import numpy as np
import pytest
import torch

from dicl_flow import FlowSequence, load
from dicl_flow.tracking.tracker import Tracker, track
from dicl_flow.tracking.tracks import Reference, grid

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
FRAMES, _ = fake_trees.moving_frames(6, (128, 192))


@pytest.mark.parametrize("quality", ["normal", "best"])
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("fp16", 0.02)])
def test_a_batch_gives_the_flows_of_its_pairs(quality, precision, bound):
    sequence = FlowSequence(
        load(device="cuda", precision=precision, quality=quality), backward=True
    )
    prepared = [sequence.prepare(frame) for frame in FRAMES]
    pairs = [(before, prepared[-1]) for before in prepared[:-1]]
    for _ in range(3):  # as it comes, recorded, replayed
        together = [packed.clone() for packed in sequence.match_pairs(pairs)]
    for packed, pair in zip(together, pairs, strict=True):
        assert (packed - sequence.match(*pair))[:, :2].abs().mean() <= bound


def test_tracks_are_those_of_a_cpu():
    queries = np.float32([[0, 60, 50], [0, 120, 90], [3, 90, 64]])
    found, expected = (
        track(FRAMES, queries, estimator=load(device=device, precision="fp32"))
        for device in ("cuda", "cpu")
    )
    assert np.abs(found.points - expected.points).max() < 0.05
    assert (found.visible == expected.visible).all()


def test_every_pixel_is_followed_and_memory_does_not_grow():
    tracker = Tracker(load(device="cuda"), [Reference(0, grid((128, 192), 1))], intervals=(1, 2, 4))
    peaks = []
    for number in range(60):
        (positions,) = tracker.push(FRAMES[number % 2])
        if number in (29, 59):
            torch.cuda.synchronize()
            peaks.append(torch.cuda.max_memory_allocated())
    assert len(positions.points) == 128 * 192
    assert peaks[0] == peaks[1]
