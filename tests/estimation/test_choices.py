"""The reasons given for device, precision and frame size are the true ones."""

import json
import re
from dataclasses import replace
from math import prod

import pytest
import torch
from conftest import FAST_BYTES, SMALL

from dicl_flow.config import CUES, Calibration, ModelConfig
from dicl_flow.errors import InputError
from dicl_flow.estimation.compute import choose_compute, choose_device
from dicl_flow.estimation.estimator import FlowEstimator, computed, explain_frame
from dicl_flow.models import build
from dicl_flow.weights import Weights, encode_weights, read_weights, resolve

SCALED = {"padding": "resize", "max_pixels": 32 * 48}


def test_what_was_asked_for_has_no_other_reason():
    compute = choose_compute(ModelConfig(), "cpu", "fp32", "plain", 3 << 29)
    assert compute.choices() == {
        "device": ("cpu", "as asked"),
        "backend": ("plain", "as asked"),
        "precision": ("fp32", "as asked"),
        "memory": ("1.5 GiB", "as asked"),
    }


def test_a_network_without_an_accelerated_version_says_so():
    backend, reason = choose_compute(ModelConfig(matcher="dot"), "cpu").choices()["backend"]
    assert backend == "plain"
    assert "matcher 'dot' has no accelerated version" in reason


@pytest.mark.parametrize(
    ("changes", "limit", "size", "value"),
    [
        ({}, None, (64, 96), "whole"),
        ({}, None, (60, 90), "whole, padded to 96x64"),
        ({"padding": "resize"}, None, (60, 90), "whole, resized to 96x64, 1.07 of the size"),
        (SCALED, None, (64, 96), "scaled down to 48x32, 0.50 of the size"),
        (SCALED, None, (64, 80), "scaled down to 48x32, 0.60 of the width and 0.50 of the height"),
        ({}, FAST_BYTES * 300 * 300, (300, 520), "in tiles of 304x288"),
    ],
)
def test_how_a_frame_is_computed(changes, limit, size, value):
    estimator = FlowEstimator(build(replace(SMALL, **changes)), "cpu", "fp32", "fast", limit)
    assert explain_frame(estimator, size).value == value
    assert estimator.fits(torch.zeros(1, 3, *size)) == ("tiles" not in value)


def test_the_tiles_of_few_sizes_are_remembered(monkeypatch):
    monkeypatch.setattr("dicl_flow.estimation.pipeline._MOST_SIZES", 3)
    tiles = FlowEstimator(build(SMALL), "cpu", "fp32").pipeline.tiles
    for width in range(64, 74):
        assert tiles.size(torch.zeros(1, 3, 48, width)) == (48, width)
        assert len(tiles._sizes) <= 3


@pytest.mark.parametrize(
    ("changes", "full_size", "computed", "size", "confidence"),
    [
        ({}, False, "whole, padded to 64x48", "51x37", "an error of at most 1 px"),
        (
            {"padding": "resize", "max_pixels": 32 * 32},
            False,
            "scaled down to 32x32, 0.63 of the width and 0.86 of the height",
            "32x32",
            "an error of at most 1 px of 32x32: 1.59x1.16 px of the frame",
        ),
        (
            {"padding": "resize", "max_pixels": 32 * 32},
            True,
            "whole, seen as 32x32, then as 51x37 padded to 64x48",
            "51x37",
            "an error of at most 1 px",
        ),
    ],
)
def test_flow_says_at_which_size_it_was_computed(
    run, frames, tmp_path, changes, full_size, computed, size, confidence
):
    config = replace(SMALL, **changes)
    calibration = Calibration(0.5, *[-0.1] * len(CUES))
    weights = tmp_path / "w.safetensors"
    state = build(config).state_dict()
    weights.write_bytes(encode_weights(Weights(config, state, calibration=calibration)))
    words = ("flow", *frames, "-o", tmp_path / "x.flo", "-w", weights, "--precision", "fp32")
    words += ("--full-size",) if full_size else ()
    found = json.loads(run(*words, "--json")[1])
    assert (found["computed"], found["computed_size"]) == (computed, size)
    assert found["confidence"] == f"probability of {confidence}"
    assert computed in run(*words)[1]


@pytest.mark.parametrize("size", [(37, 51), (32, 48), (200, 300), (20, 20)])
@pytest.mark.parametrize("full_size", [False, True])
@pytest.mark.parametrize("quality", ["fast", "normal", "best"])
@pytest.mark.parametrize("changes", [{}, SCALED])
def test_the_computed_size_is_the_last_one_named(changes, quality, full_size, size):
    network = build(replace(SMALL, **changes))
    found = computed(
        FlowEstimator(network, "cpu", "fp32", quality=quality, full_size=full_size), size
    )
    named = re.findall(r"\d+x\d+", re.sub(r"padded to \d+x\d+", "", found["computed"]))
    assert found["computed_size"] == [f"{size[1]}x{size[0]}", *named][-1]
    width, height = map(int, found["computed_size"].split("x"))
    assert ("whole" in found["computed"]) == (width * height >= prod(size))


def test_flow_tells_people_and_leaves_machines_their_object(run, frames, small_weights, tmp_path):
    arguments = ("flow", *frames, "-o", tmp_path / "x.flo", "-w", small_weights, "--device", "cpu")
    code, out, error = run(*arguments, "-v", "--json", "--precision", "fp32")
    assert code == 0
    assert json.loads(out)["precision"] == "fp32"
    lines = [" ".join(line.split()) for line in error.splitlines()]
    assert "precision fp32: as asked" in lines
    assert "path as it comes: nothing is prepared for a shape on this device" in lines
    times = next(line for line in lines if line.startswith("times"))
    parts = json.loads(out)["parts"]
    assert [*parts] == ["torch", "import", "weights", "prepare", "estimate", "write"]
    assert all(f"{name} {seconds:.2f} s" in times for name, seconds in parts.items())
    assert any(line.startswith("frame whole, padded to") for line in lines)
    code, _, error = run(*arguments, "-v", "-q")
    assert code == 2
    assert "contradict" in error


def test_info_tells_the_same(run):
    found = json.loads(run("info", "--json")[1])
    packaged = read_weights(resolve(None))
    chosen = choose_compute(packaged.config, int8=bool(packaged.extremes))
    for name, (value, reason) in chosen.choices().items():
        if name != "memory":  # others use it meanwhile
            assert (found[name], found[f"{name}_because"]) == (value, reason)
    assert found["memory"].endswith("GiB")


@pytest.mark.parametrize("name", ["gpu", "GPU", "nvidia"])
def test_a_gpu_is_called_cuda(name):
    with pytest.raises(InputError, match=f"unknown device '{name}'; did you mean 'cuda'"):
        choose_device(name)
