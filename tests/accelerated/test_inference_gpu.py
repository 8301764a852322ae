"""The accelerated network gives the flow of the plain one on a CUDA device."""

import gc
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from golden import formula

import dicl_flow
from dicl_flow.accelerated.recording import Graphs
from dicl_flow.config import Calibration
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.weights import load_model
from dicl_flow.weights.legacy import import_legacy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(import_legacy(checkpoint))


def distance(model, precision, height, width):
    images = formula.pair(height, width)
    plain = FlowEstimator(model, "cuda", "fp32", "plain")(*images).flow
    fast = FlowEstimator(model, "cuda", precision, "fast")(*images).flow
    return torch.from_numpy(plain - fast).norm(dim=-1)


@pytest.mark.parametrize("size", [(256, 384), (100, 130)])
def test_float32_stays_within_the_promise(model, size):
    difference = distance(model, "fp32", *size)
    assert difference.mean() <= 1e-3
    assert (difference > 2e-2).float().mean() <= 1e-4


def test_large_frames_at_full_size_are_what_a_cpu_computes_at_first_and_in_a_replay(checkpoint):
    weights = import_legacy(checkpoint)
    config = replace(weights.config, padding="resize", max_pixels=128 * 128)
    model, images = load_model(replace(weights, config=config)), formula.pair(200, 260)
    on_cpu = FlowEstimator(model, "cpu", "fp32", "plain", full_size=True)
    expected = on_cpu(*images, backward=True)
    for backend in ("plain", "fast"):
        estimator = FlowEstimator(model, "cuda", "fp32", backend, full_size=True)
        for _ in range(3):  # the first is not recorded, the third is a replay
            found = estimator(*images, backward=True)
            for one, other in ((found, expected), (found.backward, expected.backward)):
                assert torch.from_numpy(one.flow - other.flow).norm(dim=-1).mean() <= 1e-3


def test_smaller_radii_are_what_a_cpu_computes_at_first_and_in_a_replay(model):
    images = formula.pair(200, 260)
    expected = FlowEstimator(model, "cpu", "fp32", "plain", quality="live")(*images, backward=True)
    estimator = FlowEstimator(model, "cuda", "fp32", "fast", quality="live")
    for _ in range(3):  # the first is not recorded, the third is a replay
        found = estimator(*images, backward=True)
        for one, other in ((found, expected), (found.backward, expected.backward)):
            assert torch.from_numpy(one.flow - other.flow).norm(dim=-1).mean() <= 1e-3


@pytest.mark.parametrize(("precision", "bound"), [("fp16", 0.03), ("bf16", 0.3)])
def test_reduced_precision_stays_near(precision, bound):
    """With trained weights, on the pictures of the demo."""
    demo = Path(dicl_flow.__file__).parent / "demo"
    pair = [demo / f"rendered_img{number}.png" for number in (1, 2)]
    plain = dicl_flow.load(device="cuda", precision="fp32", backend="plain")(*pair).flow
    fast = dicl_flow.load(device="cuda", precision=precision, backend="fast")(*pair).flow
    assert 0 < torch.from_numpy(plain - fast).norm(dim=-1).mean() < bound


def test_shapes_come_and_go(model):
    estimator = FlowEstimator(model, "cuda", "fp16", "fast")
    sizes = [(1, 128, 256), (2, 128, 128), (1, 200, 130), (1, 256, 256), (3, 90, 90), (1, 128, 256)]
    first: dict[tuple[int, int, int], torch.Tensor] = {}
    for batch, height, width in 2 * sizes:
        generator = torch.Generator().manual_seed(height)
        images = torch.rand(2, batch, 3, height, width, generator=generator)
        flow = estimator.estimate(*images)[0]
        assert flow.shape == (batch, 2, height, width)
        reference = first.setdefault((batch, height, width), flow)
        torch.testing.assert_close(flow, reference, atol=2e-2, rtol=0)
    assert isinstance(estimator.pipeline._one_way, Graphs)
    assert len(estimator.pipeline._one_way._recordings) == len(first)


def test_a_single_pair_is_not_recorded(model):
    estimator = FlowEstimator(model, "cuda", "fp16", "fast")
    images = torch.rand(2, 1, 3, 128, 128)
    graphs, found = estimator.pipeline._one_way, []
    for number in (0, 1, 1):
        found.append(estimator.estimate(*images)[0])
        assert len(graphs._recordings) == number
    for flow in found[1:]:
        torch.testing.assert_close(flow, found[0], atol=2e-2, rtol=0)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_result_outlives_the_next_call(model, calls):
    estimator = FlowEstimator(model, "cuda", "fp16", "fast")
    images = torch.rand(2, 1, 3, 128, 128)
    for _ in range(calls):
        flow = estimator.estimate(*images)[0]
    kept = flow.clone()
    estimator.estimate(*images.flip(0))
    torch.testing.assert_close(flow, kept)


def test_a_recording_gates_blank_and_still_pairs(model):
    """The same recording serves pairs that move and pairs that tell nothing of motion."""
    estimator = FlowEstimator(model, "cuda", "fp16", "fast")
    image, other = torch.rand(2, 1, 3, 128, 128)
    before = estimator.estimate(image, other)[0]
    for pair in ((image, image), (0 * image, 0 * image), (image, 0 * image)):
        assert not estimator.estimate(*pair)[0].any()
    assert not estimator.estimate(0 * image, image)[1].any()
    torch.testing.assert_close(estimator.estimate(image, other)[0], before, atol=2e-2, rtol=0)
    assert before.abs().mean() > 0


def test_a_used_estimator_can_be_pickled_and_leaves_tensors_on_the_device(model):
    estimator = FlowEstimator(model, "cuda", "fp16", "fast")
    images = formula.pair(128, 128)
    expected = estimator.tensors(*images, backward=True)
    found = pickle.loads(pickle.dumps(estimator)).tensors(*images, backward=True)
    for tensors in (found, found.backward):
        assert tensors.flow.is_cuda
        assert tensors.occlusion.is_cuda
    torch.testing.assert_close(found.flow, expected.flow, atol=2e-2, rtol=0)


def test_two_estimators_in_two_threads(model):
    estimators = [FlowEstimator(model, "cuda", "fp16", "fast") for _ in range(2)]
    images = [torch.rand(2, 1, 3, 128, 128 * (index + 1)) for index in range(2)]
    found: list[list[torch.Tensor]] = [[], []]

    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            flows = [estimators[index].estimate(*images[index])[0] for _ in range(5)]
            torch.cuda.current_stream().synchronize()
            found[index] = flows

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for flows in found:
        assert len(flows) == 5
        for flow in flows:
            torch.testing.assert_close(flow, flows[0], atol=1e-3, rtol=0)


def best(model, backend, precision="fp32"):
    """With a calibration, so that the kernel of the confidence runs at the larger scale."""
    calibration = Calibration(1.0, -1.0, -0.5, -0.3, -0.2, -0.8, -0.1, -1.0)
    return FlowEstimator(model, "cuda", precision, backend, calibration=calibration, quality="best")


@pytest.fixture
def rare_collection():
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(5_000)
    yield
    gc.set_threshold(*before)


def test_a_dropped_recording_is_not_freed_while_another_is_made(rare_collection):
    """Freeing a graph ends the capture of another one; the collector may run at any time."""

    def negative(values: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            [[] for _ in range(20_000)]  # enough allocations to start a collection
        return -values

    def twice(graphs: Graphs) -> torch.Tensor:
        graphs(torch.ones(4, device="cuda"))
        return graphs(torch.ones(4, device="cuda"))

    cycle = [Graphs(torch.neg)]
    twice(cycle[0])
    cycle.append(cycle)
    del cycle
    assert twice(Graphs(negative)).tolist() == [-1] * 4


def test_two_passes_replay_as_the_plain_path_computes_them(model):
    """The first answer is not recorded, the second is; pairs, both ways, and from a given flow."""
    images = [torch.from_numpy(f).permute(2, 0, 1)[None] / 255 for f in formula.pair(120, 200)]
    plain, fast = best(model, "plain"), best(model, "fast")
    initial = torch.full((1, 2, 120, 200), 3.0)
    for _ in range(2):
        calls = [
            (one.estimate(*images), *one.estimate_both(*images), one.estimate(*images, initial))
            for one in (plain, fast)
        ]
        for expected, found in zip(*calls, strict=True):
            for a, b in zip(expected, found, strict=True):
                assert (a - b).abs().mean() <= 2e-3
                assert ((a - b).abs() > 5e-2).float().mean() <= 1e-3


@pytest.mark.parametrize("backward", [False, True])
def test_a_sequence_of_two_passes_gives_its_pairs(model, backward):
    first, second = formula.pair(120, 200)
    estimator = best(model, "fast")
    sequence = dicl_flow.FlowSequence(estimator, backward=backward)
    for frame in (first, second, first, second):  # the last ones are replays
        found = sequence.push(frame)
    expected = estimator(first, second, backward=backward)
    ways = [(found, expected), *([(found.backward, expected.backward)] if backward else [])]
    for one, other in ways:
        assert abs(one.flow - other.flow).mean() <= 2e-3
        assert abs(one.confidence - other.confidence).mean() <= 1e-3


def test_half_precision_stays_near_in_two_passes():
    """With trained weights, on the pictures of the demo."""
    demo = Path(dicl_flow.__file__).parent / "demo"
    pair = [demo / f"rendered_img{number}.png" for number in (1, 2)]
    plain, fast = (
        dicl_flow.load(device="cuda", precision=precision, backend=backend, quality="best")(*pair)
        for precision, backend in (("fp32", "plain"), ("fp16", "fast"))
    )
    assert 0 < torch.from_numpy(plain.flow - fast.flow).norm(dim=-1).mean() < 0.05


def test_the_memory_promise(model):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    estimator = FlowEstimator(model, "cuda", "fp16", "fast")
    images = torch.rand(2, 1, 3, 436, 1024, device="cuda")
    for _ in range(3):
        estimator.estimate(*images)
    assert torch.cuda.max_memory_reserved() - before <= 0.5 * 2**30
