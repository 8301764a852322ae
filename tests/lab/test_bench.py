"""`dicl-flow bench` measures what it says and explains what it cannot measure."""

import json
import sys
from importlib.machinery import ModuleSpec
from itertools import product
from types import ModuleType

import cv2
import pytest
import torch
from conftest import SMALL

from dicl_flow.config import QUALITIES, ModelConfig, find_quality
from dicl_flow.errors import InputError
from dicl_flow.estimation.inputs import Feeding
from dicl_flow.lab import speed
from dicl_flow.lab.speed import Case, count_work, moving_pattern
from dicl_flow.models import build
from dicl_flow.weights import read_weights, resolve

pytestmark = pytest.mark.heavy

QUICK = ("bench", "--repeats", "1", "--device", "cpu")


@pytest.mark.heavy
def test_bench_compares_with_the_plain_path(run, tiny_weights, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "check_compiler", lambda device: None)
    monkeypatch.setattr(speed, "compile_network", lambda model, device: model)  # minutes
    files = tmp_path / "b.json", tmp_path / "b.png"
    options = ("--size", "64x48", "--batch", "1", "--batch", "2", "--path", "plain-fp32")
    outputs = ("-o", files[0], "--plot", files[1])
    paths = ("--path", "fast-fp32", "--path", "compiled-fp32")
    code, out, _ = run(*QUICK, "-w", tiny_weights, *options, *paths, *outputs)
    assert code == 0
    assert "times plain" in out
    assert "of peak: share of the speed that this machine's" in out
    report = json.loads(files[0].read_text())
    assert report["torch"] == torch.__version__
    rows = report["results"]
    assert [(row["batch"], row["backend"]) for row in rows] == [
        (1, "plain"),
        (1, "fast"),
        (1, "compiled"),
        (2, "plain"),
        (2, "fast"),
        (2, "compiled"),
    ]
    for row in rows:
        assert row["startup_seconds"] > 0
        assert row["max_difference"] < 1e-2
        assert row["pairs_per_second"] == pytest.approx(row["batch"] / row["seconds"])
        assert row["ratio"] > 0
    assert cv2.imread(str(files[1])) is not None


class Raft(torch.nn.Module):
    def forward(self, image1, image2):
        assert image1.shape == image2.shape == (2, 3, 48, 64)  # multiples of 8
        assert image1.min() < 0
        return [image1[:, :2]]


class TooLarge(torch.nn.Module):
    def forward(self, image1, image2):
        raise RuntimeError("integer out of range\nat line 7")


def pretend_torchvision(monkeypatch, raft):
    for name in ("torchvision", "torchvision.models", "torchvision.models.optical_flow"):
        module = ModuleType(name)
        module.__spec__, module.raft_large = ModuleSpec(name, None), lambda **options: raft()
        monkeypatch.setitem(sys.modules, name, module)


def test_a_peer_that_fails_is_left_out_with_its_reason(run, tiny_weights, tmp_path, monkeypatch):
    pretend_torchvision(monkeypatch, TooLarge)
    options = ("--size", "60x45", "--batch", "1", "--path", "fast-fp32", "--peers")
    code, out, _ = run(*QUICK, "-w", tiny_weights, *options, "-o", tmp_path / "b.json")
    assert code == 0
    reason = "raft fp32 at 60x45: integer out of range"
    assert f"left out: {reason}\n" in out
    found = json.loads((tmp_path / "b.json").read_text())
    assert [row["backend"] for row in found["results"]] == ["fast", "dis"]
    assert found["left_out"] == [reason]


def test_peers_are_timed_on_the_same_frames(run, tiny_weights, tmp_path, monkeypatch):
    pretend_torchvision(monkeypatch, Raft)
    options = ("--size", "60x45", "--batch", "2", "--path", "fast-fp32", "--peers")
    code, out, _ = run(*QUICK, "-w", tiny_weights, *options, "-o", tmp_path / "b.json")
    assert code == 0
    assert "dis: OpenCV's dense inverse search" in out
    _, dis, raft = json.loads((tmp_path / "b.json").read_text())["results"]
    assert [(row["backend"], row["precision"]) for row in (dis, raft)] == [
        ("dis", "uint8"),
        ("raft", "fp32"),
    ]
    for row in (dis, raft):
        assert row["seconds"] > 0
        assert row["mean_difference"] is row["floor_share"] is None


def test_the_first_result_is_that_of_a_fresh_process(run, tiny_weights, tmp_path):
    options = ("--first", "--size", "64x48", "-w", tiny_weights, "-o", tmp_path / "b.json")
    code, out, _ = run(*QUICK, *options)
    assert code == 0
    assert "beyond torch: total without the import of torch" in out
    (row,) = json.loads((tmp_path / "b.json").read_text())["first"]
    assert (row["width"], row["height"], row["cache"]) == (64, 48, "-")
    assert all(row[column] > 0 for column in speed.FIRST_COLUMNS)
    assert row["beyond_torch"] == row["total"] - row["torch"]


def test_on_cuda_the_first_result_is_timed_with_empty_and_full_caches(monkeypatch):
    caches = []

    def run(words, environment):
        caches.append(environment["TRITON_CACHE_DIR"])
        return dict.fromkeys(speed.FIRST_COLUMNS, float(len(caches)))

    monkeypatch.setattr(speed, "run_fresh", run)
    rows = [*speed.measure_first(Case(64, 48), torch.device("cuda"), [], repeats=3)]
    assert [(row.cache, row.seconds["total"]) for row in rows] == [("empty", 2), ("full", 5)]
    assert len(set(caches)) == 3
    assert caches[:3] == caches[3:]


def test_the_pattern_moves_as_it_says_and_differs_from_place_to_place():
    first, second = moving_pattern(Case(640, 480))
    torch.testing.assert_close(second[..., :-6, :-6], first[..., 6:, 6:])
    blocks = torch.nn.functional.avg_pool2d(first, 64)  # what a coarse level can tell apart
    assert blocks.std() > 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--size", "64"), "WIDTHxHEIGHT"),
        (("--size", "0x64"), "WIDTHxHEIGHT"),
        (("--path", "fast"), "BACKEND-PRECISION"),
        (("--path", "fats-fp32"), "did you mean 'fast'"),
        (("--path", "fast-fp8"), "unknown precision"),
        (("-o", "/dev/null/x.json"), "/dev/null is not a folder"),
        (("--first", "--compile"), "--first takes --size"),
    ],
)
def test_bench_refuses_what_it_cannot_read(run, tiny_weights, options, message):
    code, _, err = run(*QUICK, "-w", tiny_weights, *options)
    assert code == 2
    assert message in err


def test_compiling_leaves_the_network_as_it_is():
    model = build(SMALL)
    compiled = speed.compile_network(model, torch.device("cpu"))
    assert compiled._compiled_call_impl is not None
    assert model._compiled_call_impl is None
    torch.testing.assert_close(compiled.state_dict(), model.state_dict())


def test_without_a_compiler_the_error_says_so(run, tiny_weights, monkeypatch):
    # not at the top: it imports Triton, which other tests want with its interpreter
    from torch._inductor.exc import InvalidCxxCompiler

    def find_none():
        raise InvalidCxxCompiler

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", find_none)
    code, out, err = run(*QUICK, "-w", tiny_weights, "--compile")
    assert code == 2
    assert not out
    assert "torch.compile needs a C++ compiler, which was not found" in err


def test_a_compiler_that_fails_is_named():
    from torch._dynamo.exc import BackendCompilerFailed

    failed = BackendCompilerFailed(print, OSError("no Python.h\nand much more"), None)
    with (
        pytest.raises(InputError, match=r"failed here \(no Python.h\); measure without"),
        speed.explained(),
    ):
        raise failed


@pytest.mark.parametrize("quality", QUALITIES)
def test_the_network_sees_frames_as_in_an_estimate(quality):
    """Frames of 640x384 at quality "fast" are seen as 512x256; padded, they would be 512x384."""
    weights, quality = read_weights(resolve("rendered")), find_quality(quality)
    model, _ = speed.open_network("rendered", quality, None)
    for scale, size in product(quality.scales, [(384, 640), (436, 1024), (360, 640)]):
        measured, estimated = (
            Feeding.of(config, scale).seen(size) for config in (model.config, weights.config)
        )
        assert measured == estimated


def test_frames_that_would_be_scaled_down_are_measured_at_full_size():
    model, _ = speed.open_network("rendered", find_quality("normal"), None)
    assert Feeding.of(model.config).seen((1080, 1920)) == (1152, 1920)


def test_counted_work_grows_with_pixels_and_pairs():
    one = count_work(ModelConfig(), 1, (436, 1024))
    assert 0.4e12 < one.operations < 0.6e12  # half a TFLOP with the first layer factored
    assert count_work(ModelConfig(), 2, (512, 1024)).operations == pytest.approx(2 * one.operations)
