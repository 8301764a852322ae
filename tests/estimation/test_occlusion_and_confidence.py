"""Backward flow, occlusion and confidence follow their definitions and the truth."""

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import FAST_BYTES, SMALL, needs_bf16
from golden import formula

import dicl_flow
from dicl_flow.config import CUES, Calibration, RenderConfig
from dicl_flow.errors import InputError
from dicl_flow.estimation.confidence import (
    _spread,
    find_confidence,
    find_cues,
    find_occlusion,
)
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.evaluation.calibrate import (
    CalibrationPixels,
    fit_calibration,
    judge,
    probability,
)
from dicl_flow.files import read_flow
from dicl_flow.models import LevelFlow, build
from dicl_flow.render import Renderer, load_textures
from dicl_flow.weights import Weights, encode_weights, read_weights

IMAGE1, IMAGE2 = formula.pair(37, 51)
CALIBRATION = Calibration(0.5, *np.linspace(-1, 0.2, len(CUES)).tolist(), scenes=3)


@pytest.fixture(scope="module")
def estimator(small_weights):
    return dicl_flow.load(small_weights, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A weights file of the small network with a calibration."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "calibrated.safetensors"
    weights = Weights(SMALL, build(SMALL).state_dict(), calibration=CALIBRATION)
    path.write_bytes(encode_weights(weights))
    return path


# --- both directions ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["plain", "fast"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bf16)])
def test_both_ways_are_the_two_ways(calibrated, backend, precision):
    estimator = dicl_flow.load(calibrated, "cpu", precision, backend)
    result = estimator(IMAGE1, IMAGE2, backward=True)
    tolerance = {"atol": 1e-3 if precision == "fp32" else 0.1}
    for found, frames in ((result, (IMAGE1, IMAGE2)), (result.backward, (IMAGE2, IMAGE1))):
        alone = estimator(*frames)
        np.testing.assert_allclose(found.flow, alone.flow, **tolerance)
        np.testing.assert_allclose(found.confidence, alone.confidence, atol=0.05)
        assert found.occlusion.shape == (37, 51)
        assert found.occlusion.dtype == bool
    assert result.backward.backward is None


def test_nothing_is_computed_that_was_not_asked_for(estimator):
    result = estimator(IMAGE1, IMAGE2)
    assert result.backward is None
    assert result.occlusion is None


def test_a_batch_of_both_ways_is_its_pairs(estimator):
    batch = estimator([IMAGE1, IMAGE2], [IMAGE2, IMAGE1], backward=True)
    assert batch.occlusion.shape == (2, 37, 51)
    single = estimator(IMAGE2, IMAGE1, backward=True)
    np.testing.assert_allclose(batch[1].backward.flow, single.backward.flow, atol=1e-3)
    np.testing.assert_array_equal(batch[1].occlusion, batch.occlusion[1])
    assert [bool(pair.backward) for pair in batch] == [True, True]


def test_features_are_computed_once(estimator, monkeypatch):
    seen = []
    features = estimator.model.features
    monkeypatch.setattr(
        features, "forward", lambda x, f=features.forward: seen.append(len(x)) or f(x)
    )
    estimator(IMAGE1, IMAGE2, backward=True)
    assert seen == [2]


@pytest.mark.heavy
def test_both_ways_in_tiles(small_weights, monkeypatch):
    tiled = dicl_flow.load(small_weights, "cpu", "fp32", memory_limit=64 * 256 * FAST_BYTES)
    calls = []
    compute = tiled.pipeline._both_ways
    monkeypatch.setattr(tiled.pipeline, "_both_ways", lambda *x: calls.append(1) or compute(*x))
    result = tiled(*formula.pair(64, 400), backward=True)
    assert result.backward.flow.shape == (64, 400, 2)
    assert len(calls) == 3


# --- occlusion ----------------------------------------------------------------------------------


def test_a_moving_square_hides_what_it_covers():
    """A square at x = 10 … 19 moves by 8 over a still background."""
    flow, backward = torch.zeros(1, 2, 20, 40), torch.zeros(1, 2, 20, 40)
    flow[:, 0, 5:15, 10:20] = 8
    backward[:, 0, 5:15, 18:28] = -8
    expected = torch.zeros(20, 40, dtype=torch.bool)
    expected[5:15, 20:28] = True
    assert torch.equal(find_occlusion(flow, backward)[0, 0], expected)
    uncovered = torch.zeros(20, 40, dtype=torch.bool)
    uncovered[5:15, 10:18] = True
    assert torch.equal(find_occlusion(backward, flow)[0, 0], uncovered)


def test_what_leaves_the_frame_is_occluded():
    flow = torch.zeros(1, 2, 6, 10)
    flow[:, 0] = 3
    occluded = find_occlusion(flow, -flow)[0, 0]
    assert not occluded[:, :7].any()
    assert occluded[:, 7:].all()


@pytest.mark.heavy
def test_occlusion_follows_the_truth_on_rendered_scenes():
    estimator = dicl_flow.load(device="cpu")
    textures = load_textures(None, size=(192, 256))
    renderer = Renderer(RenderConfig(num_shapes=40, shape_side=96), (256, 256), textures, seed=6)
    found = true = both = 0
    for number in range(2):
        rendered = renderer.render(1, number)
        (flow, _), (backward, _) = estimator.estimate_both(rendered.image1, rendered.image2)
        hidden = find_occlusion(flow, backward)[:, 0]
        found, true = found + hidden.sum(), true + rendered.occluded.sum()
        both += (hidden & rendered.occluded).sum()
    assert both / true > 0.7
    share = true / (2 * rendered.occluded.numel())
    assert both / found > 2 * share


# --- confidence ---------------------------------------------------------------------------------


def test_confidence_is_the_regression_of_the_cues():
    """Against a computation of its own, pixel by pixel, where nothing is resized."""
    torch.manual_seed(1)
    flows = [torch.randn(1, 2, 6, 8) for _ in range(3)]
    levels = [LevelFlow(*flows[:2], torch.rand(1, 1, 6, 8)) for _ in range(2)]
    levels[1] = LevelFlow(flows[2], 0.1 * flows[1], torch.rand(1, 1, 6, 8))
    image = torch.rand(1, 3, 6, 8)
    cues = find_cues(levels, image, image)[0].double().numpy()
    flow = levels[1].refined[0].double().numpy()
    expected = {
        "entropy": levels[1].entropy[0, 0],
        "refinement": np.log1p(np.hypot(*(flow - levels[1].matched[0].double().numpy()))),
        "disagreement": np.log1p(np.hypot(*(flow - levels[0].refined[0].double().numpy()))),
        "length": np.log1p(np.hypot(*flow)),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(cues[CUES.index(name)], value, atol=1e-5)
    around = flow[:, 2:5, 3:6].reshape(2, -1)
    edge = np.log1p(np.hypot(*(around.max(1) - around.min(1))))
    assert cues[CUES.index("edge"), 3, 4] == pytest.approx(edge, abs=1e-5)
    logit = CALIBRATION.bias + np.tensordot(CALIBRATION.weights, cues, 1)
    found = find_confidence(levels, image, image, CALIBRATION)[0, 0]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logit)), atol=1e-5)


def test_cues_of_a_perfect_match_and_of_one_that_leaves():
    level = LevelFlow(torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8), torch.zeros(1, 1, 8, 8))
    image = torch.rand(1, 3, 8, 8)
    still = find_cues([level], image, image)[0]
    assert still[:5].abs().max() == 0
    assert still[5].max() == pytest.approx(np.log(0.02))
    assert still[6].max() == 0
    far = level._replace(refined=torch.full((1, 2, 8, 8), 9.0))
    assert find_cues([far], image, image)[0, 6].min() == 1


def test_weights_carry_their_calibration(calibrated, small_weights, run):
    assert read_weights(calibrated).calibration == CALIBRATION
    assert dicl_flow.load(calibrated, "cpu").calibration == CALIBRATION
    assert dicl_flow.load(small_weights, "cpu").calibration is None
    assert "error of at most 1 px" in run("info", calibrated)[1]
    assert "uncalibrated" in run("info", small_weights)[1]
    sure = [
        dicl_flow.load(w, "cpu")(IMAGE1, IMAGE2).confidence for w in (calibrated, small_weights)
    ]
    assert np.abs(sure[0] - sure[1]).max() > 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entropie": 1.0}, "did you mean 'entropy'"),
        ({"entropy": "much"}, "entropy must be of type float"),
        ({"threshold": -1.0}, "threshold must be positive"),
    ],
)
def test_a_wrong_calibration_is_refused(change, message):
    values = json.loads(CALIBRATION.to_json()) | change
    with pytest.raises(InputError, match=message):
        Calibration.from_json(json.dumps(values))


def test_a_known_regression_is_found_again():
    random = np.random.default_rng(0)
    cues = random.normal(size=(40_000, len(CUES)))
    cues[:, 6] = 0  # a cue that never varies gets no weight
    truth = np.array([-2.0, 1, 0.5, 0, -0.5, 3, 0])
    right = random.random(len(cues)) < 1 / (1 + np.exp(-(cues @ truth + 0.7)))
    found = fit_calibration(CalibrationPixels(cues, np.where(right, 0.5, 2.0)), 1.0, 1)
    np.testing.assert_allclose(found.weights, truth, atol=0.08)
    assert found.bias == pytest.approx(0.7, abs=0.05)
    judged = judge(probability(found, cues), np.where(right, 0.5, 2.0), 1.0)
    assert judged["calibration_error"] < 0.01


def test_a_network_that_is_never_right_cannot_be_calibrated():
    with pytest.raises(InputError, match="never within 1 px"):
        fit_calibration(CalibrationPixels(np.zeros((5, 7)), np.full(5, 9.0)), 1.0, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("small_scenes")
def test_calibrate_orders_the_errors_of_unseen_scenes(run, tmp_path):
    """The packaged weights, a few small scenes: the least sure are the most wrong."""
    output = tmp_path / "out.safetensors"
    arguments = ["-d", "rendered=procedural", "-n", 4, "--size", "256x256", "--device", "cpu"]
    code, out, _ = run("calibrate", *arguments, "-o", output, "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["written"] == [str(output)]
    deciles = [summary[f"decile_{index}"] for index in range(1, 11)]
    assert deciles[0] > deciles[2] > deciles[5] > deciles[9]
    assert summary["ause"] < summary["ause_of_entropy"]
    weights = read_weights(output)
    assert weights.calibration.scenes == 4
    assert "4 rendered scenes" in weights.about["calibration"]
    before = read_weights(dicl_flow.weights.resolve(None))
    assert all(torch.equal(weights.tensors[key], before.tensors[key]) for key in before.tensors)


@pytest.mark.heavy
@pytest.mark.usefixtures("small_scenes")
def test_calibrate_gives_the_same_file_again(run, small_weights, tmp_path):
    arguments = ["-w", small_weights, "-d", "rendered=procedural", "-n", 4, "--size", "64x64"]
    outputs = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for output in outputs:
        assert run("calibrate", *arguments, "--threshold", 9, "-o", output, "-q")[0] == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert read_weights(outputs[0]).calibration.threshold == 9
    assert read_weights(outputs[0]).extremes  # for int8


def test_calibrate_says_what_is_wrong(run, small_weights, tmp_path):
    output = tmp_path / "x.safetensors"
    for arguments, message in [
        (("-d", "sintel=x", "-o", output), "rendered=PHOTOS"),
        (("-d", "rendered=nowhere", "-o", output), "no folder of photographs"),
        (("-d", "rendered=procedural", "-o", tmp_path / "x.pth"), "must end in .safetensors"),
        (("-d", "rendered=procedural", "-o", output, "--size", "100x100"), "multiples of 16"),
    ]:
        code, _, err = run("calibrate", *arguments, "-w", small_weights)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    assert not output.exists()


# --- the command flow ---------------------------------------------------------------------------


def test_flow_writes_both_ways_and_the_occlusion(run, frames, small_weights, tmp_path):
    there, back, hidden = tmp_path / "there.flo", tmp_path / "back.flo", tmp_path / "hidden.png"
    options = ["-o", there, "--backward", back, "--occlusion", hidden, "-w", small_weights]
    code, out, _ = run("flow", *frames, *options, "--precision", "fp32", "--json")
    assert code == 0
    result = dicl_flow.load(small_weights, "cpu", "fp32")(*frames, backward=True)
    np.testing.assert_allclose(read_flow(back), result.backward.flow, atol=1e-4)
    mask = cv2.imread(str(hidden), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(mask, np.where(result.occlusion, 255, 0))
    assert json.loads(out)["occluded"] == pytest.approx(result.occlusion.mean())
    code, _, err = run("flow", *frames, "--backward", tmp_path / "x.jpg", "-w", small_weights)
    assert code == 2
    assert "flow files must end in" in err


@pytest.mark.parametrize("suffix", [".flo", ".png", ".pfm", ".npz", ".npy"])
def test_flow_below_the_confidence_is_unknown_in_every_format(
    run, frames, small_weights, tmp_path, suffix
):
    confidence = dicl_flow.load(small_weights, "cpu", "fp32")(*frames).confidence
    limit = float(np.median(confidence))
    output = tmp_path / f"x{suffix}"
    arguments = ["-o", output, "-w", small_weights, "--min-confidence", limit]
    assert run("flow", *frames, *arguments, "--precision", "fp32", "-q")[0] == 0
    unknown = np.isnan(read_flow(output)[..., 0])
    assert np.mean(unknown == (confidence < limit)) > 0.99
    code, _, err = run("flow", *frames, *arguments[:-1], 1, "--precision", "fp32")
    assert code == 2
    assert "no pixel has a confidence of 1" in err


def test_masking_marks_both_directions(estimator):
    result = estimator(IMAGE1, IMAGE2, backward=True)
    masked = result.masked(float(np.median(result.confidence)))
    assert 0.3 < np.isnan(masked.flow[..., 0]).mean() < 0.7
    assert np.isnan(masked.backward.flow).any()
    assert np.isfinite(result.flow).all()


def test_model_without_context_still_has_a_confidence():
    torch.manual_seed(0)
    model = build(replace(SMALL, context=False))
    result = FlowEstimator(model, "cpu", calibration=CALIBRATION)(IMAGE1, IMAGE2)
    assert np.isfinite(result.confidence).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (7, 9)])
def test_the_spread_is_that_of_pooling(size):
    maps = torch.randn(2, 2, *size)
    expected = F.max_pool2d(maps, 3, 1, 1) + F.max_pool2d(-maps, 3, 1, 1)
    assert torch.equal(_spread(maps), expected)
