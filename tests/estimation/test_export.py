"""Files for other programs give the estimator's flow, at the sizes they promise."""

import io
import json

import onnxruntime
import pytest
import torch
from exports import GROUP, SIZE, make_weights

from dicl_flow import load
from dicl_flow.config import LevelConfig, ModelConfig
from dicl_flow.estimation import export
from dicl_flow.estimation.export import demo_frames
from dicl_flow.ops import displacement_windows

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group(GROUP)]


def reference(path, frames):
    """What the estimator answers to (B, 3, H, W) uint8 frames."""
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


def open_pt2(path):
    extra = {"dicl_flow.json": ""}
    program = torch.export.load(io.BytesIO(path.read_bytes()), extra_files=extra)
    return program.module(), json.loads(extra["dicl_flow.json"])


@pytest.mark.slow
def test_onnx_of_one_size(exported):
    summary = exported.summary
    assert summary["written"] == [str(exported.onnx)]
    assert summary["mean_difference_px"] <= summary["max_difference_px"] < 1e-3
    session, estimate = open_onnx(exported.onnx)
    assert session.get_inputs()[0].shape == ["batch", 3, *SIZE]
    assert session.get_inputs()[0].type == "tensor(uint8)"
    about = session.get_modelmeta().custom_metadata_map
    assert "uint8, RGB" in about["input"]
    assert "px of the input" in about["output"]
    assert about["recipe"] == "r"
    assert ModelConfig.from_json(about["dicl_flow.config"]).max_pixels == 2000
    assert_equal_flow(exported.weights, estimate, [(1, SIZE), (3, SIZE)])


@pytest.mark.slow
def test_torch_export_of_one_size(exported):
    estimate, about = open_pt2(exported.pt2)
    assert about["recipe"] == "r"
    assert_equal_flow(exported.weights, estimate, [(1, SIZE), (3, SIZE)])


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
    estimate, about = open_pt2(output)
    assert "uint8, RGB" in about["input"]
    assert_equal_flow(weights, estimate, [(1, (37, 51)), (2, (64, 40)), (1, (8, 8))])


def test_a_file_that_differs_is_not_written(run, tmp_path, monkeypatch):
    """A runtime whose flow is half a pixel off; nothing is traced, which would take long."""
    weights, output = make_weights(tmp_path, padding="white"), tmp_path / "x.pt2"

    def open_wrongly(data):
        assert data == b"a file"
        return lambda *frames: tuple(part + 0.5 for part in reference(weights, frames))

    monkeypatch.setattr(export, "_encode_torch_export", lambda program, metadata: b"a file")
    monkeypatch.setattr(export, "_open_torch_export", open_wrongly)
    monkeypatch.setattr(export, "_trace", lambda module, size: None)
    code, out, err = run("export", "--size", "16x16", "-w", weights, "-o", output)
    assert (code, out) == (2, "")
    assert "differs from the estimator's by 0.707 px" in err
    assert not output.exists()


def test_wrong_requests_are_one_sentence(run, tmp_path):
    weights = make_weights(tmp_path, padding="resize", max_pixels=2000)
    for arguments, message in [
        (("-o", tmp_path / "x.onnx"), "either --size WIDTHxHEIGHT or --dynamic"),
        (("-o", tmp_path / "x.onnx", "--size", "8x8", "--dynamic"), "either --size"),
        (("-o", tmp_path / "x.pt", "--dynamic"), "must end in .onnx or .pt2"),
        (("-o", tmp_path / "x.pt2", "--format", "onnx", "--dynamic"), "must end in .onnx"),
        (("-o", tmp_path / "x.onnx", "--format", "onxx", "--dynamic"), "did you mean 'onnx'"),
        (("-o", tmp_path / "x.onnx", "--size", "8by8"), "--size must be WIDTHxHEIGHT"),
        (("-o", tmp_path / "x.onnx", "--size", "0x8"), "must be WIDTHxHEIGHT"),
        (("-o", weights / "x.onnx", "--dynamic"), "is not a folder"),
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


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_quality_live_and_frames_as_floats(run, tmp_path, suffix):
    levels = (LevelConfig(4, 2),)  # quality "live" searches less far
    weights, output = make_weights(tmp_path, levels=levels), tmp_path / f"x.{suffix}"
    options = ("--dynamic", "--quality", "live", "--input", "float", "--quiet")
    assert run("export", "-w", weights, "-o", output, *options) == (0, "", "")
    estimate = open_onnx(output)[1] if suffix == "onnx" else open_pt2(output)[0]
    frames = [frame / 255 for frame in demo_frames((37, 51))]
    how = {"device": "cpu", "precision": "fp32", "backend": "plain"}
    live, normal = (load(weights, **how, quality=q).estimate(*frames) for q in ("live", "normal"))
    for found, expected in zip(estimate(*frames), live, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    assert (live.flow - normal.flow).abs().max() > 0.1


def test_an_unknown_kind_of_input_is_refused(run, tmp_path):
    code, out, err = run("export", "--dynamic", "-o", tmp_path / "x.pt2", "--input", "int8")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "unknown input 'int8'" in err
    assert not any(tmp_path.iterdir())
