"""A sequence on a CUDA device gives the flow of its pairs, whatever is copied meanwhile."""

import csv
from itertools import pairwise

import fake_trees
import numpy as np
import pytest
import torch

from dicl_flow import FlowSequence, load
from dicl_flow.accelerated.recording import Graphs
from dicl_flow.bulk.job import Job, Plan, Settings
from dicl_flow.bulk.manifest import Row, read_manifest, write_manifest
from dicl_flow.bulk.worker import Worker
from dicl_flow.pictures.visualize import flow_to_rgb
from dicl_flow.video.flows import arriving
from dicl_flow.video.writers import flow_colors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
FRAMES, _ = fake_trees.moving_frames(4, (180, 320))


@pytest.mark.parametrize(
    ("backend", "precision", "bound"),
    [("plain", "fp32", 1e-4), ("fast", "fp32", 1e-3), ("fast", "fp16", 0.02)],
)
def test_a_sequence_gives_the_flow_of_its_pairs(backend, precision, bound):
    estimator = load(device="cuda", precision=precision, backend=backend)
    sequence = FlowSequence(estimator)
    assert isinstance(sequence._match_whole, Graphs) == (backend == "fast")
    assert sequence.push(FRAMES[0]) is None
    for pair in pairwise(FRAMES):
        difference = np.abs(sequence.push(pair[1]).flow - estimator(*pair).flow)
        assert difference.mean() <= bound


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("fp16", 0.02)])
def test_with_backward_it_gives_both_flows_of_its_pairs(precision, bound):
    estimator = load(device="cuda", precision=precision, backend="fast")
    sequence = FlowSequence(estimator, backward=True)
    assert isinstance(sequence._match_whole, Graphs)
    sequence.push(FRAMES[0])
    for pair in pairwise(FRAMES):
        found, expected = sequence.push(pair[1]), estimator(*pair, backward=True)
        for one, other in ((found, expected), (found.backward, expected.backward)):
            assert np.abs(one.flow - other.flow).mean() <= bound
            assert (one.occlusion != other.occlusion).mean() < 0.01


def test_an_answer_outlives_the_next_frame():
    sequence = FlowSequence(load(device="cuda", precision="fp16", backend="fast"))
    answers = [sequence.advance(frame) for frame in FRAMES[:2]]
    kept = answers[1].clone()
    sequence.advance(FRAMES[2])
    assert torch.equal(answers[1], kept)


def test_copies_that_are_not_waited_for_are_those_that_are():
    frames, _ = fake_trees.moving_frames(24, (180, 320))
    sequence = FlowSequence(load(device="cuda", precision="fp16", backend="fast"))

    def answers(wait):
        sequence.restart()
        coming = []
        for frame in frames:
            answer = sequence.advance(frame.copy())
            coming += [] if answer is None else [arriving(answer)]
            if wait:
                torch.cuda.synchronize()
        return np.stack([arrived() for arrived in coming])

    np.testing.assert_allclose(answers(wait=False), answers(wait=True), atol=0.01)


def test_colours_on_the_device_are_those_of_the_picture():
    flow = np.random.default_rng(0).normal(0, 4, (60, 80, 2)).astype(np.float32)
    found = flow_colors(torch.from_numpy(flow).permute(2, 0, 1).cuda(), 9.0).cpu().numpy()
    assert np.abs(found.astype(int) - flow_to_rgb(flow, 9.0)).max() <= 1


def test_frames_are_not_copied_far_ahead_of_the_computation():
    frames, _ = fake_trees.moving_frames(4, (1088, 1920))
    sequence = FlowSequence(load(device="cuda", precision="fp16", backend="fast"))
    slow = peak_memory(lambda: advance(sequence, frames, 8, torch.cuda.synchronize))
    fast = peak_memory(lambda: advance(sequence, frames, 48, lambda: None))
    assert fast - slow <= 6 * frames[0].nbytes


def test_a_frame_may_change_as_soon_as_it_was_pushed():
    frames, _ = fake_trees.moving_frames(4, (180, 320))
    sequence = FlowSequence(load(device="cuda", precision="fp16", backend="fast"))
    kept = advance(sequence, frames, 12, torch.cuda.synchronize)
    buffer = np.empty_like(frames[0])
    for number in range(12):
        buffer[:] = frames[number % 4]  # as a decoder that reuses its memory
        changed = sequence.advance(buffer)
        buffer[:] = 0
    assert torch.equal(changed, kept)


def test_scores_measured_beside_the_network_are_those_of_each_pair(tmp_path):
    frames, _ = fake_trees.moving_frames(40, (270, 480))
    for number, frame in enumerate(frames):
        fake_trees.write_image(tmp_path / "clip" / f"{number:03}.png", frame)
    write_manifest(tmp_path / "list.csv", [Row(path="clip")] * 3)
    manifest = read_manifest(str(tmp_path / "list.csv"))
    settings = Settings("packaged", table="csv", device="cuda")
    job = Job(settings, str(tmp_path / "out"), manifest.root)
    worker = Worker(job, "cuda")
    for _ in range(3):
        worker.score(*frames[:2])  # records
    expected = [worker.score(*pair) for pair in pairwise(frames)]
    (outcome,) = worker.run(Plan(manifest, settings))
    assert outcome.marker["flows"] == 3 * 39
    (path,) = (tmp_path / "out" / "scores").iterdir()
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    for row, scores in zip(rows, expected * 3, strict=True):
        assert {name: row[name] for name in scores} == {
            name: "" if value is None else str(value) for name, value in scores.items()
        }


def advance(sequence, frames, count, between):
    for number in range(count):
        answer = sequence.advance(frames[number % len(frames)])
        between()
    return answer


def peak_memory(work):
    work()  # records
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated()
