"""Pairs of a video estimated at the same time give the flows of one after the other."""

from csv import DictReader
from itertools import pairwise

import fake_trees
import numpy as np
import pytest
import torch
from bulk_runs import make_job, run_bulk, write_frames, write_pairs
from conftest import SMALL

from dicl_flow import FlowSequence
from dicl_flow.accelerated import settings, winograd
from dicl_flow.accelerated.settings import Processor
from dicl_flow.bulk.job import Job
from dicl_flow.errors import InputError
from dicl_flow.estimation.compute import CpuEngine
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build
from dicl_flow.video import estimate_flows
from dicl_flow.video.frames import Frame

ROUNDING = {"rtol": 1e-4, "atol": 1e-4}
NAMES = ("mean_length", "confidence", "sharpness")
FRAMES, _ = fake_trees.moving_frames(7, (40, 56))


def small(backend, memory_limit=None):
    torch.manual_seed(0)
    return FlowEstimator(build(SMALL), "cpu", "fp32", backend, memory_limit)


@pytest.fixture(params=[1, 3])
def at_once(request, monkeypatch):
    monkeypatch.setattr(CpuEngine, "pairs_at_once", lambda self, fitting: request.param)
    return request.param


def clip(images=FRAMES, scenes=None, after=lambda number: None):
    """Frames; `after` is called when the next one is asked for."""
    for number, image in enumerate(images):
        problem = "broken" if image is None else ""
        scene = scenes[number] if scenes else ""
        yield Frame(number, f"{number}", None, image, problem=problem, scene=scene)
        after(number)


def test_flows_come_in_order_and_are_those_of_their_pairs(at_once):
    estimator, before = small("fast"), torch.get_num_threads()
    flows = list(estimate_flows(clip(), FlowSequence(estimator)))
    assert [flow.frame.number for flow in flows] == [0, 1, 2, 3, 4, 5]
    for flow in flows:
        expected = estimator(*flow.images).flow
        np.testing.assert_allclose(flow.result.flow, expected, **ROUNDING)
    assert torch.get_num_threads() == before


def test_as_many_frames_are_taken_ahead_as_pairs_are_estimated_at_a_time(at_once):
    taken = []
    flows = estimate_flows(clip(after=taken.append), FlowSequence(small("fast")))
    next(flows)
    assert len(taken) == (1 if at_once == 1 else 1 + at_once)
    flows.close()


def test_with_one_at_a_time_a_flow_waits_for_no_later_frame(at_once):
    taken = []
    flows = estimate_flows(clip(after=taken.append), FlowSequence(small("fast")), at_most=1)
    for number in range(3):
        assert next(flows).following.number == number + 1
        assert len(taken) == number + 1
    flows.close()


def test_what_was_begun_before_frames_fail_is_kept(at_once):
    def failing():
        yield from clip(FRAMES[:4])
        raise InputError("frame 4 cannot be read")

    flows = estimate_flows(failing(), FlowSequence(small("fast")))
    assert [next(flows).frame.number for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="frame 4 cannot be read"):
        next(flows)


@pytest.mark.parametrize("others", [1, 3])
def test_broken_frames_scenes_and_other_sizes(at_once, others, monkeypatch):
    """Frames of which fewer fit into the memory get all of torch's threads."""
    size = FRAMES[0].shape[:2]
    monkeypatch.setattr(FlowSequence, "at_once", lambda _, s: at_once if s == size else others)
    a, b, c, d, e, f, g = FRAMES
    images = [a, b, None, d, e, f[:, :48], g[:, :48], c]
    scenes = ["1", "1", "1", "1", "1", "2", "2", "3"]
    estimator = small("fast")
    flows = list(estimate_flows(clip(images, scenes), FlowSequence(estimator)))
    assert [(flow.frame.number, bool(flow.problem)) for flow in flows] == [
        *((0, False), (1, True), (2, True), (3, False), (5, False)),
    ]
    for flow in flows:
        if not flow.problem:
            expected = estimator(*flow.images).flow
            np.testing.assert_allclose(flow.result.flow, expected, **ROUNDING)


def test_an_error_comes_in_its_turn_and_ends_all_threads(at_once, monkeypatch):
    sequence, before = FlowSequence(small("fast")), torch.get_num_threads()
    prepare = sequence.prepare

    def fail_once(image):
        if image is FRAMES[3]:
            raise InputError("too much")
        return prepare(image)

    monkeypatch.setattr(sequence, "prepare", fail_once)
    seen = []
    with pytest.raises(InputError, match="too much"):
        seen.extend(flow.frame.number for flow in estimate_flows(clip(), sequence))
    assert seen == [0, 1]
    assert torch.get_num_threads() == before


X86, ARM = Processor(onednn=True, amx=True, bf16=True), Processor(onednn=True, fp16=True, acl=True)


@pytest.mark.parametrize(
    ("cpu", "threads", "nnpack", "expected"),
    [
        (X86, 2, [], 2),
        (X86, 16, [], 8),
        pytest.param(ARM, 16, [], 16, id="NNPACK has not been called"),
        pytest.param(ARM, 2, [1], 2, id="NNPACK has one thread"),
        pytest.param(ARM, 2, [2], 1, id="NNPACK has two threads"),
    ],
)
def test_the_processor_decides(monkeypatch, cpu, threads, nnpack, expected):
    estimator = small("fast")
    monkeypatch.setattr(settings, "processor", lambda: cpu)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(winograd, "_threads_of_nnpack", nnpack)
    assert FlowSequence(estimator).at_once((40, 56)) == expected


@pytest.mark.skipif(not settings.has_winograd(), reason="needs an ARM processor")
def test_nnpack_has_as_many_threads_as_torch_at_its_first_call(monkeypatch):
    monkeypatch.setattr(winograd, "_threads_of_nnpack", [])
    image, weight = torch.zeros(1, 32, 24, 24), torch.zeros(32, 32, 3, 3)
    winograd.convolve(image, weight, torch.zeros(32), 1, relu=True)
    assert winograd._threads_of_nnpack == [torch.get_num_threads()]


@pytest.mark.parametrize(("cpu", "expected"), [(X86, 3), (ARM, 1)])
def test_no_more_pairs_at_a_time_than_fit_into_the_memory(monkeypatch, cpu, expected):
    """On ARM, all threads or one pair: NNPACK's cannot be shared out."""
    needed = small("fast").engine.bytes_per_pixel() * 128 * 128
    estimator = small("fast", memory_limit=int(3.5 * needed))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(winograd, "_threads_of_nnpack", [])
    monkeypatch.setattr(settings, "processor", lambda: cpu)
    monkeypatch.setattr(estimator.engine, "bytes_per_pixel", lambda: needed // 128**2)
    assert FlowSequence(estimator).at_once((128, 128)) == expected
    assert FlowSequence(estimator).at_once((1024, 1024)) == 1


def test_the_plain_network_estimates_one_pair_at_a_time():
    assert FlowSequence(small("plain")).at_once((40, 56)) == 1


def test_bulk_runs_give_the_same_tables(tmp_path, monkeypatch):
    """With pairs that share frames, a pair of two sizes, a missing frame, and several segments."""
    write_frames(tmp_path, 6, (40, 56))
    write_frames(tmp_path / "small", 2, (32, 48))
    names = [f"f{number}.png" for number in range(6)]
    pairs = [*pairwise(names), ("f0.png", "small/f1.png"), ("small/f0.png", "small/f1.png")]
    manifest = write_pairs(tmp_path / "list.csv", [*pairs, ("f0.png", "none.png"), names[:2]])
    monkeypatch.setattr(Job, "load", lambda job, device: small("fast"))
    found = []
    for at_once in (1, 3):
        monkeypatch.setattr(
            CpuEngine, "pairs_at_once", lambda self, fitting, at_once=at_once: at_once
        )
        out = tmp_path / f"out{at_once}"
        run_bulk(*make_job(manifest, out, segment=4))
        tables = sorted(out.glob("scores/*.csv"))
        found.append([row for table in tables for row in DictReader(table.open())])
    one, several = found
    status = [row["status"] for row in one]
    assert [text == "ok" for text in status] == [*[True] * 5, False, True, False, True]
    assert status == [row["status"] for row in several]
    for expected, row in zip(one, several, strict=True):
        if expected["status"] == "ok":
            values = [[float(each[name]) for name in NAMES] for each in (row, expected)]
            assert values[0] == pytest.approx(values[1], rel=1e-3)
