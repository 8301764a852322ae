"""Exports in float16: what computes in it, what does not, and how far the flow may be off."""

import io
import json
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exports import TINY, make_weights
from onnx import TensorProto
from torch import nn

from dicl_flow import load
from dicl_flow.config import LevelConfig, ModelConfig
from dicl_flow.estimation import export
from dicl_flow.estimation.export import TOLERANCES, demo_frames
from dicl_flow.estimation.half import in_half
from dicl_flow.models import build
from dicl_flow.models.blocks import ConvBlock
from dicl_flow.weights import Weights, encode_weights, read_weights

pytestmark = pytest.mark.heavy
LEVELS = (LevelConfig(8, 1), LevelConfig(4, 2))
SIZE = (48, 64)


@pytest.fixture(scope="module")
def network():
    """Of two levels, with batch norms that have seen something."""
    torch.manual_seed(0)
    model = build(ModelConfig(levels=LEVELS))
    with torch.no_grad():
        model.train()(*pair())
    return model.eval()


def pair():
    return tuple(frame / 255 * 2 - 1 for frame in demo_frames(SIZE))


def inner_types(model):
    """What comes out of each leaf of the network, and the flows."""
    seen = {}
    names = {module: name for name, module in model.named_modules()}

    def note(module, inputs, output):
        seen[names[module]] = output.dtype

    for module in names:
        if not any(module.children()) and not isinstance(module, nn.Identity):
            module.register_forward_hook(note)
    with torch.no_grad():
        return seen, model(*pair())


def test_convolutions_compute_in_float16_and_the_readout_in_float32(network):
    seen, levels = inner_types(in_half(network))
    in_float32 = [name for name, dtype in seen.items() if dtype == torch.float32]
    # of each level: the last layer of the matching net, and the projection
    assert in_float32 == [
        f"levels.{level.stride}.{part}"
        for level in LEVELS
        for part in ("matcher.net.5.part", "projection.part")
    ]
    assert Counter(seen.values())[torch.float16] > 30
    assert all(part.dtype == torch.float32 for flow in levels for part in flow[:3])


@pytest.mark.parametrize("matcher", ["dicl", "mlp", "dot", "cosine"])
def test_the_flow_is_that_of_float32_but_for_rounding(matcher):
    torch.manual_seed(0)
    network = build(ModelConfig(matcher=matcher, levels=LEVELS)).eval()
    with torch.no_grad():
        exact, rounded = network(*pair())[-1].refined, in_half(network)(*pair())[-1].refined
    assert 0 < (exact - rounded).norm(dim=1).mean() < TOLERANCES["fp16"] / LEVELS[-1].stride


def test_the_network_itself_stays_as_it_was(network):
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    half = in_half(network)
    after = network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    blocks = [module for module in half.modules() if isinstance(module, ConvBlock)]
    assert not any(isinstance(block.bn, nn.BatchNorm2d) for block in blocks)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"levels": (LevelConfig(4, 2),)}, {"quality": "live"}),  # which searches less far
        ({"levels": (LevelConfig(4, 2),)}, {"quality": "best"}),
        ({"padding": "resize", "max_pixels": 16 * 64}, {"full_size": True}),
    ],
)
def test_it_estimates_as_the_estimator_does(tmp_path, config, options):
    weights = make_weights(tmp_path, **config)
    exact = load(weights, "cpu", "fp32", "plain", **options)
    frames = [frame / 255 for frame in demo_frames((32, 48))]
    half = export._in_float16(exact).estimate(*frames).flow
    normal = load(weights, "cpu", "fp32", "plain").estimate(*frames).flow
    assert (half - exact.estimate(*frames).flow).norm(dim=1).mean() <= TOLERANCES["fp16"]
    assert (half - normal).norm(dim=1).mean() > 2 * TOLERANCES["fp16"]


def overflowing(path):
    """Features of 10 million: fine in float32, infinite in float16."""
    weights = read_weights(path)
    weights.tensors["features.outputs.4.bn.weight"] *= 1e7
    path.write_bytes(encode_weights(weights))
    return path


def never(*arguments):
    raise AssertionError("traced, although float16 does not suffice")


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_network_that_overflows_is_refused_before_it_is_traced(
    run, tmp_path, monkeypatch, suffix
):
    weights, output = overflowing(make_weights(tmp_path)), tmp_path / f"x.{suffix}"
    frames = [frame / 255 for frame in demo_frames(SIZE)]
    assert load(weights, "cpu", "fp32", "plain").estimate(*frames).flow.isfinite().all()
    monkeypatch.setattr(export, "_trace", never)
    options = ("--size", "64x48", "--precision", "fp16")
    code, out, err = run("export", "-w", weights, "-o", output, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "in float16 the flow of these weights differs" in err
    assert "use --precision fp32" in err
    assert not output.exists()


def test_wrong_requests_are_one_sentence(run, tmp_path):
    pwc = ModelConfig(host="pwcnet", levels=(LevelConfig(8, 1),))
    path = tmp_path / "pwc.safetensors"
    path.write_bytes(encode_weights(Weights(pwc, build(pwc).state_dict())))
    for options, message in [
        (("--precision", "fp61"), "unknown precision 'fp61'; did you mean 'fp16'? known: fp32"),
        (("--precision", "bf16"), "unknown precision 'bf16'"),
        (("--precision", "fp16", "-w", path), "host 'pwcnet' is exported in float32 only"),
    ]:
        code, out, err = run("export", "--size", "64x48", "-o", tmp_path / "x.pt2", *options)
        assert (code, out, err.count("\n")) == (2, "", 1), options
        assert message in err
    assert [file.name for file in tmp_path.iterdir()] == ["pwc.safetensors"]


def test_a_flow_that_is_nan_at_one_size_is_no_agreement():
    class Still:
        def __call__(self, *frames):
            return torch.zeros(1, 2, 4, 4), torch.zeros(1, 1, 4, 4)

        def examples(self, size, count):
            return demo_frames(size, count)

    def broken_when_large(image1, image2):
        value = torch.nan if len(image1) == 2 else 0.0
        return torch.full((1, 2, 4, 4), value), torch.zeros(1, 1, 4, 4)

    sizes = [(1, (4, 4)), (2, (4, 4))]
    assert np.isnan(export._compare(Still(), broken_when_large, sizes).mean)


def assert_near(weights, estimate, size, count=1):
    """The flow of a file, in float32, is near the estimator's; the confidence is, too."""
    frames = demo_frames(size, count)
    flow, confidence = estimate(*frames)
    exact = load(weights, "cpu", "fp32", "plain").estimate(*(frame / 255 for frame in frames))
    assert flow.dtype == confidence.dtype == torch.float32
    assert (flow - exact.flow).norm(dim=1).mean() <= TOLERANCES["fp16"]
    torch.testing.assert_close(confidence, exact.confidence, atol=0.02, rtol=0)


def open_onnx(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def estimate(*frames):
        named = zip(("image1", "image2"), frames, strict=True)
        return map(torch.from_numpy, session.run(None, {n: f.numpy() for n, f in named}))

    return estimate, session.get_modelmeta().custom_metadata_map


def open_pt2(path):
    extra = {"dicl_flow.json": ""}
    program = torch.export.load(io.BytesIO(path.read_bytes()), extra_files=extra)
    return program.module(), json.loads(extra["dicl_flow.json"])


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "open_file"), [("onnx", open_onnx), ("pt2", open_pt2)])
def test_a_file_for_any_size(run, tmp_path, suffix, open_file):
    weights = make_weights(tmp_path, levels=TINY.levels, projection=True, context=True)
    output = tmp_path / f"x.{suffix}"
    options = ("--dynamic", "--precision", "fp16", "--quiet")
    assert run("export", "-w", weights, "-o", output, *options) == (0, "", "")
    estimate, about = open_file(output)
    assert about["dicl_flow.precision"] == "fp16"
    assert "float32" in about["output"]
    for count, size in [(1, (37, 51)), (2, (64, 40)), (1, (8, 8))]:
        assert_near(weights, estimate, size, count)


@pytest.mark.slow
def test_packaged_weights_on_the_demo(run, tmp_path):
    output = tmp_path / "x.onnx"
    options = ("--size", "256x192", "--precision", "fp16", "--json")
    code, out, err = run("export", "-o", output, *options)
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert summary["precision"] == "fp16"
    assert summary["mean_difference_px"] <= TOLERANCES["fp16"]
    assert summary["megabytes"] < 26  # float32: 47
    stored = onnx.load(output).graph.initializer
    assert {TensorProto.FLOAT16, TensorProto.FLOAT} <= {tensor.data_type for tensor in stored}
    halves = sum(np.prod(t.dims) for t in stored if t.data_type == TensorProto.FLOAT16)
    floats = sum(np.prod(t.dims) for t in stored if t.data_type == TensorProto.FLOAT)
    assert halves > 100 * floats
    assert_near(None, open_onnx(output)[0], (192, 256))
