"""Files for other programs give the estimator's flow, at the sizes they promise."""

import io
import json
from dataclasses import replace

import onnxruntime
import pytest
import torch

from dicl_flow import export
from dicl_flow.config import Calibration, LevelConfig, ModelConfig
from dicl_flow.export import demo_frames
from dicl_flow.models import build
from dicl_flow.ops import displacement_windows
from dicl_flow.weights import Weights, encode_weights

pytestmark = pytest.mark.heavy

# sides in multiples of 8
TINY = ModelConfig(levels=(LevelConfig(4, 1),), projection=False, context=False)


def make_weights(tmp_path, **changes):
    torch.manual_seed(0)
    config = replace(TINY, **changes)
    path = tmp_path / "tiny.safetensors"
    calibration = Calibration(0.3, -1.0, 0.4, -0.5, 0.2, -0.3, -0.6, -0.9)
    state = build(config).state_dict()
    weights = Weights(config, state, {"recipe": "r"}, calibration=calibration)
    path.write_bytes(encode_weights(weights))
    return path


def reference(path, frames):
    """What the estimator answers to (B, 3, H, W) uint8 frames."""
    from dicl_flow import load

    estimator = load(path, device="cpu", precision="fp32", backend="plain")
    return estimator.estimate(*(frame / 255 for frame in frames))


def assert_equal_flow(path, run, sizes):
    for count, size in sizes:
        frames = demo_frames(size, count)
        for found, expected in zip(run(*frames), reference(path, frames), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def open_onnx(path):
    session = onnxruntime.InferenceSession(path)

    def run(image1, image2):
        outputs = session.run(None, {"image1": image1.numpy(), "image2": image2.numpy()})
        return tuple(map(torch.from_numpy, outputs))

    return session, run


def test_onnx_of_one_size(run, tmp_path):
    weights, output = make_weights(tmp_path, padding="resize", max_pixels=2000), tmp_path / "x.onnx"
    code, out, _ = run("export", "--size", "70x50", "-w", weights, "-o", output, "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["written"] == [str(output)]
    assert summary["mean_difference_px"] <= summary["max_difference_px"] < 1e-3
    session, estimate = open_onnx(output)
    assert session.get_inputs()[0].shape == ["batch", 3, 50, 70]
    assert session.get_inputs()[0].type == "tensor(uint8)"
    about = session.get_modelmeta().custom_metadata_map
    assert "uint8, RGB" in about["input"]
    assert "px of the input" in about["output"]
    assert about["recipe"] == "r"
    assert ModelConfig.from_json(about["dicl_flow.config"]).max_pixels == 2000
    assert_equal_flow(weights, estimate, [(1, (50, 70)), (3, (50, 70))])


# Tracing for any size takes a minute.
@pytest.mark.slow
def test_onnx_of_any_size(run, tmp_path):
    weights, output = make_weights(tmp_path), tmp_path / "x.onnx"
    assert run("export", "--dynamic", "-w", weights, "-o", output, "--quiet") == (0, "", "")
    session, estimate = open_onnx(output)
    assert session.get_outputs()[0].shape == ["batch", 2, "height", "width"]
    # sides to fill up, exact multiples, the smallest
    assert_equal_flow(weights, estimate, [(1, (37, 51)), (2, (64, 40)), (1, (8, 8)), (1, (3, 90))])


@pytest.mark.slow
def test_torch_export_of_any_size(run, tmp_path):
    weights, output = make_weights(tmp_path, padding="resize"), tmp_path / "x.pt2"
    arguments = ("--dynamic", "-w", weights, "-o", output)
    assert run("export", *arguments)[0] == 0
    extra = {"dicl_flow.json": ""}
    estimate = torch.export.load(io.BytesIO(output.read_bytes()), extra_files=extra).module()
    assert "uint8, RGB" in json.loads(extra["dicl_flow.json"])["input"]
    assert_equal_flow(weights, estimate, [(1, (37, 51)), (2, (64, 40)), (1, (8, 8))])


def test_a_file_that_differs_is_not_written(run, tmp_path, monkeypatch):
    """A runtime that answers half a pixel beside the estimator."""
    form = export.FORMATS["torch-export"]

    def open_wrongly(data):
        right = form.open(data)
        return lambda *frames: tuple(output + 0.5 for output in right(*frames))

    wrong = replace(form, open=open_wrongly)
    monkeypatch.setitem(export.FORMATS, "torch-export", wrong)
    weights, output = make_weights(tmp_path, padding="white"), tmp_path / "x.pt2"
    arguments = ("--size", "16x16", "-w", weights, "-o", output)
    code, out, err = run("export", *arguments)
    assert (code, out) == (2, "")
    assert "differs from the estimator's by 0.707 px" in err
    assert not output.exists()


def test_wrong_requests_are_one_sentence(run, tmp_path):
    weights = make_weights(tmp_path, padding="resize", max_pixels=2000)
    for arguments, message in [
        (("-o", tmp_path / "x.onnx"), "either --size WIDTHxHEIGHT or --dynamic"),
        (("-o", tmp_path / "x.onnx", "--size", "8x8", "--dynamic"), "either --size"),
        (("-o", tmp_path / "x.pt", "--dynamic"), "ends in .onnx or .pt2"),
        (("-o", tmp_path / "x.pt2", "--format", "onnx", "--dynamic"), "onnx ends in .onnx"),
        (("-o", tmp_path / "x.onnx", "--format", "onxx", "--dynamic"), "did you mean 'onnx'"),
        (("-o", tmp_path / "x.onnx", "--size", "8by8"), "--size must be WIDTHxHEIGHT"),
        (("-o", tmp_path / "x.onnx", "--size", "0x8"), "must be WIDTHxHEIGHT"),
        (("-o", tmp_path / "no" / "x.onnx", "--dynamic"), "there is no folder"),
        (("-o", tmp_path / "x.onnx", "--dynamic", "-w", weights), "give --size"),
        (("-o", tmp_path / "x.onnx", "--dynamic", "-w", "sintell"), "unknown weights"),
    ]:
        code, out, err = run("export", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.safetensors"]


def test_a_missing_extra_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    arguments = ("export", "--size", "16x16", "-o", tmp_path / "x.onnx")
    code, _, err = run(*arguments, "-w", make_weights(tmp_path))
    assert code == 2
    assert "pip install 'dicl-flow[export]'" in err


def test_windows_are_the_same_in_an_export(monkeypatch):
    features = torch.rand(2, 3, 5, 7)
    expected = displacement_windows(features, 2)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert torch.equal(displacement_windows(features, 2), expected)


def test_help_has_examples(run):
    assert "dicl-flow export" in run("export", "--help")[1]
