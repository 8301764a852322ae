"""A given start flow is used, and each quality takes its passes and sizes."""

import json
from dataclasses import replace
from itertools import pairwise
from math import prod

import fake_trees
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import FAST_BYTES, SMALL
from networks import randomize_norms_and_biases

import dicl_flow
from dicl_flow.accelerated.cpu import AcceleratedDiclFlow
from dicl_flow.config import CUES, QUALITIES, Calibration, LevelConfig, ModelConfig, Quality
from dicl_flow.errors import InputError
from dicl_flow.estimation.confidence import find_cues
from dicl_flow.estimation.estimator import FlowEstimator, explain_frame
from dicl_flow.estimation.inputs import Feeding, flow_batch
from dicl_flow.estimation.pipeline import in_tiles
from dicl_flow.files import read_flow, write_flow
from dicl_flow.lab import speed as cases
from dicl_flow.lab.speed import count_work
from dicl_flow.models import InitialFlow, LevelFlow, build
from dicl_flow.weights import Weights, encode_weights, read_weights

pytestmark = pytest.mark.heavy

FRAMES, _ = fake_trees.moving_frames(3, (24, 40))
HEIGHT, WIDTH = 24, 40
RESIZE = replace(SMALL, padding="resize")
PACKAGED = ModelConfig(padding="resize", max_pixels=640 * 1024)
ROUNDING = {"rtol": 1e-3, "atol": 1e-3}


def small(backend="fast", config=SMALL, **options):
    torch.manual_seed(0)
    return FlowEstimator(
        randomize_norms_and_biases(build(config)), "cpu", "fp32", backend, **options
    )


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return randomize_norms_and_biases(build(SMALL)).double()


@pytest.fixture(scope="module")
def images():
    return (2 * torch.rand(2, 2, 3, 16, 32, dtype=torch.float64) - 1).unbind(0)


def constant(x, y, size=(16, 32)):
    return torch.tensor([x, y], dtype=torch.float64)[None, :, None, None].expand(2, 2, *size)


# --- initial flow -------------------------------------------------------------------------------


@torch.no_grad()
def test_a_level_starts_from_the_flow_in_its_own_pixels(network, images):
    (found,) = network(*images, InitialFlow(constant(3, -2), 4))
    features = [network.features(image)[-1] for image in images]
    start = constant(0.75, -0.5, (4, 8))
    expected = network.levels["4"](*features, images[0], start)
    torch.testing.assert_close(found.refined, expected.refined)
    assert (found.refined - network(*images)[-1].refined).abs().max() > 0.1


@torch.no_grad()
def test_coarser_levels_are_skipped(network, images):
    assert len(network(*images)) == 2
    assert len(network(*images, InitialFlow(constant(3, -2), 8))) == 2
    assert len(network(*images, InitialFlow(constant(3, -2), 32))) == 2  # all are finer
    assert len(network(*images, InitialFlow(constant(3, -2), 4))) == 1


@pytest.mark.parametrize("stride", [8, 4])
@torch.no_grad()
def test_the_fast_twin_begins_alike(network, images, stride):
    flow = 5 * torch.randn(2, 2, 16, 32, dtype=torch.float64)  # leaves the frame here and there
    initial = [InitialFlow(flow, stride), InitialFlow(-flow, stride)]
    fast = AcceleratedDiclFlow(network, torch.float64)
    pairs = [(network(*images, initial[0]), fast(*images, initial[0]))]
    both = (twin.both_ways(*images, *initial) for twin in (network, fast))
    pairs += zip(*both, strict=True)
    for expected, found in pairs:
        for a, b in zip(expected[-1], found[-1], strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=0)


@torch.no_grad()
def test_what_cannot_be_begun_from_is_refused(network, images):
    with pytest.raises(InputError, match="no level is left to run from stride 2 on"):
        network(*images, InitialFlow(constant(0, 0), 2))
    with pytest.raises(ValueError, match=r"must be \(2, 2, 16, 32\), got \(2, 2, 4, 8\)"):
        network(*images, InitialFlow(constant(0, 0, (4, 8)), 4))
    other = build(ModelConfig(host="pwcnet", levels=SMALL.levels))
    with pytest.raises(InputError, match="host 'pwcnet' cannot start from a flow"):
        other(*(image.float() for image in images), InitialFlow(constant(0, 0), 4))


@pytest.mark.parametrize("config", [SMALL, RESIZE], ids=["padded", "resized"])
def test_an_estimate_begins_from_the_flow_that_is_given(config):
    """At the scale of the last pass, without the passes before it."""
    estimator = small("plain", config, quality=Quality("two", (1.0, 2.0), 4))
    flow = np.full((HEIGHT, WIDTH, 2), (4, -6), np.float32)
    seen = []
    estimator.model.register_forward_hook(lambda *call: seen.append(call[1]))
    result = estimator(FRAMES[0], FRAMES[1], initial=flow)
    assert len(seen) == 1
    image, _, initial = seen[0]
    assert image.shape[-2:] == initial.flow.shape[-2:] == (48, 80)
    torch.testing.assert_close(initial.flow, constant(8, -12, (48, 80))[:1].float())
    assert np.abs(result.flow - estimator(FRAMES[0], FRAMES[1]).flow).max() > 0.1
    tensor = torch.from_numpy(flow).permute(2, 0, 1)
    np.testing.assert_array_equal(estimator(FRAMES[0], FRAMES[1], initial=tensor).flow, result.flow)


def test_a_wrong_flow_to_begin_from_is_refused():
    estimator, flow = small(), np.zeros((HEIGHT, WIDTH, 2), np.float32)
    with pytest.raises(InputError, match=r"shape \(23, 40, 2\); frames of 40x24 need \(24, 40, 2"):
        estimator(FRAMES[0], FRAMES[1], initial=flow[1:])
    with pytest.raises(InputError, match=r"need \(2, 24, 40, 2\)"):
        estimator(FRAMES[:2], FRAMES[1:], initial=flow)
    with pytest.raises(InputError, match=r"shape \(4,\)"):
        flow_batch(np.zeros(4), torch.zeros(1, 3, HEIGHT, WIDTH))
    with pytest.raises(InputError, match="unknown at some pixels"):
        estimator(FRAMES[0], FRAMES[1], initial=flow + np.nan)
    with pytest.raises(InputError, match="says nothing of the backward flow"):
        estimator(FRAMES[0], FRAMES[1], initial=flow, backward=True)


# --- scales -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "scale", "expected"),
    [
        ((436, 1024), 1.0, (512, 1024)),
        ((436, 1024), 2.0, (896, 2048)),
        ((436, 1024), 1.5, (768, 1536)),
        ((1080, 1920), 2.0, (1152, 2176)),  # of four times max_pixels
        ((375, 1242), 0.7, (256, 896)),
        ((100, 100), 0.7, (128, 128)),
    ],
)
def test_what_the_network_sees(size, scale, expected):
    assert Feeding.of(PACKAGED, scale).seen(size) == expected


@pytest.mark.parametrize("config", [SMALL, RESIZE], ids=["padded", "resized"])
@pytest.mark.parametrize("scale", [0.7, 1.0, 1.5, 2.0])
def test_a_flow_goes_there_and_comes_back(config, scale):
    """A linear one, but for its border."""
    y, x = torch.meshgrid(torch.arange(37.0), torch.arange(51.0), indexing="ij")
    flow, feeding = torch.stack([x / 5 - 2, 1 - y / 9])[None], Feeding.of(config, scale)
    fitted = feeding.fit_flow(flow)
    assert fitted.shape[-2:] == feeding.fit(torch.zeros(1, 3, 37, 51)).shape[-2:]
    assert tuple(fitted.shape[-2:]) == feeding.seen((37, 51))
    back = feeding.unfit_flow(fitted, (37, 51))
    torch.testing.assert_close(back[..., 2:-2, 2:-2], flow[..., 2:-2, 2:-2], atol=1e-4, rtol=0)


def test_enlarged_frames_stay_in_range():
    image = torch.ones(1, 3, 32, 32)
    image[..., 16:] = -1  # a cubic overshoots here
    fitted = Feeding.of(RESIZE, 2.0).fit(image)
    assert (fitted.min(), fitted.max()) == (-1, 1)
    steps = fitted[0, 0, 0].diff()
    assert (steps <= 1e-6).all()


# --- passes -------------------------------------------------------------------------------------


@torch.no_grad()
def test_best_is_a_second_pass_from_the_flow_of_the_first():
    estimator = small("plain", RESIZE, quality="best")
    model = estimator.model
    pair = [torch.from_numpy(np.ascontiguousarray(f)).permute(2, 0, 1)[None] for f in FRAMES[:2]]
    unit = [image.float() / 127.5 - 1 for image in pair]

    def area(x, height, width, mode="bilinear"):
        return F.interpolate(x, (height, width), mode=mode, align_corners=False, antialias=True)

    def scaled(flow, size):  # to (height, width)
        ratio = torch.tensor([size[1] / flow.shape[-1], size[0] / flow.shape[-2]])
        bigger = F.interpolate(flow, size, mode="bilinear", align_corners=False)
        return bigger * ratio[None, :, None, None]

    def finest(levels, size):
        flow = F.interpolate(levels[-1].refined, size, mode="bilinear", align_corners=True)
        return 4 * flow

    first = model(*(area(image, 32, 48) for image in unit))
    flow = scaled(finest(first, (32, 48)), (HEIGHT, WIDTH))
    second = model(
        *(area(image, 48, 80, "bicubic").clamp(-1, 1) for image in unit),
        InitialFlow(scaled(flow, (48, 80)), 8),
    )
    expected = scaled(finest(second, (48, 80)), (HEIGHT, WIDTH))[0].permute(1, 2, 0)
    np.testing.assert_allclose(estimator(*FRAMES[:2]).flow, expected, **ROUNDING)


NARROW = Quality("narrow", radii=((8, 1),))
NARROW_AND_SMALL = Quality("small", (0.7,), radii=((8, 1),))


@pytest.mark.parametrize(
    ("quality", "config"),
    [
        *(("best", SMALL), ("best", RESIZE), ("fast", RESIZE)),
        *((NARROW, SMALL), (NARROW_AND_SMALL, RESIZE)),
    ],
    ids=str,
)
def test_both_backends_batches_directions_and_sequences_agree(quality, config):
    plain, fast = (small(backend, config, quality=quality) for backend in ("plain", "fast"))
    expected = plain(*FRAMES[:2], backward=True)
    sequence = dicl_flow.FlowSequence(fast, backward=True)
    assert sequence.push(FRAMES[0]) is None
    pushed, batch = sequence.push(FRAMES[1]), fast(FRAMES[:2], FRAMES[1::-1])
    for found in (pushed, batch[0]):
        np.testing.assert_allclose(found.flow, expected.flow, **ROUNDING)
        np.testing.assert_allclose(found.confidence, expected.confidence, **ROUNDING)
    for back in (pushed.backward, batch[1]):
        np.testing.assert_allclose(back.flow, expected.backward.flow, **ROUNDING)


def test_smaller_radii_find_another_flow():
    flows = [small("fast", quality=quality)(*FRAMES[:2]).flow for quality in ("normal", NARROW)]
    assert np.abs(flows[0] - flows[1]).max() > 0.1


def test_the_work_of_smaller_radii_is_less():
    quality = Quality("narrow", radii=((8, 1), (4, 1)))
    normal, narrow = (
        count_work(config, 1, (64, 96)).operations
        for config in (PACKAGED, PACKAGED.with_radii(quality.radii))
    )
    assert narrow < 0.5 * normal


def test_features_of_both_scales_are_computed_once_a_frame():
    sequence, seen = dicl_flow.FlowSequence(small("plain", quality="best")), []
    features = sequence.estimator.model.features
    features.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape[-2:])))
    for frame in FRAMES:
        sequence.push(frame)
    assert seen == [(32, 48), (48, 80)] * len(FRAMES)


def test_settings_that_make_no_sense_are_refused(small_weights):
    with pytest.raises(InputError, match="unknown quality 'bset'; did you mean 'best'"):
        dicl_flow.load(small_weights, quality="bset")
    with pytest.raises(InputError, match="scale of each pass must be"):
        Quality("none", ())
    with pytest.raises(InputError, match="must be one of"):
        Quality("odd", (1.0, 2.0), 7)
    with pytest.raises(InputError, match="host 'vcn' cannot; use quality 'normal'"):
        QUALITIES["best"].check_for(ModelConfig(host="vcn"))
    with pytest.raises(InputError, match="finest level has stride 8"):
        Quality("late", (1.0, 2.0), 4).check_for(replace(SMALL, levels=SMALL.levels[:1]))


# --- memory -------------------------------------------------------------------------------------


def test_an_enlarged_frame_needs_its_memory():
    image = torch.empty(1, 3, 512, 512, device="meta")
    limit = FAST_BYTES * 512 * 512  # suffices for one pass, just so
    assert small(memory_limit=limit).fits(image)
    best = small(memory_limit=limit, quality="best")
    assert best.tile(image) == (256, 256)
    tiles = "in tiles of 256x256, each seen as 256x256, then as 512x512"
    assert explain_frame(best, (512, 512)).value == tiles
    assert small(memory_limit=4 * limit, quality="best").fits(image)


def test_frames_that_are_scaled_down_are_not_cut():
    image = torch.empty(1, 3, 96, 160, device="meta")
    limited = replace(RESIZE, max_pixels=32 * 48)
    seen = prod(Feeding.of(limited, 2.0).seen((96, 160)))
    assert seen > prod(Feeding.of(limited).seen((96, 160)))
    needed = seen * FAST_BYTES
    assert small(config=limited, memory_limit=needed, quality="best").fits(image)
    with pytest.raises(InputError, match="too little memory for 160x96"):
        small(config=limited, memory_limit=needed // 2, quality="best").fits(image)


def test_tiles_cut_the_flow_to_begin_from_as_they_cut_the_frames():
    image = torch.rand(1, 3, 300, 400)
    pieces = []

    def estimate(image1, image2, flow):
        pieces.append(torch.equal(flow, 2 * image1[:, :2]) and torch.equal(image1, image2))
        return image1

    in_tiles(estimate, (256, 256), image, image, 2 * image[:, :2])
    assert len(pieces) > 1
    assert all(pieces)


def test_what_was_chosen_is_said():
    value, reason = explain_frame(small(config=RESIZE, quality="best"), (24, 40))
    assert value == "whole, seen as 48x32, then as 80x48"
    assert reason == "quality 'best'"


def test_the_work_is_that_of_the_passes():
    normal, best, double = (
        count_work(SMALL, 1, (64, 96), quality).operations
        for quality in (QUALITIES["normal"], Quality("b", (1.0, 2.0), 4), Quality("d", (2.0,)))
    )
    assert double == pytest.approx(4 * normal)
    assert normal + 0.5 * double < best < normal + double  # less the coarse level


# --- confidence ---------------------------------------------------------------------------------


def some_calibration(bias):
    return Calibration(bias, *np.linspace(-1, 0.2, len(CUES)).tolist())


def test_lengths_are_measured_at_the_normal_scale():
    """The same motion, seen at twice the size."""
    image = torch.zeros(1, 3, 16, 16)
    flow = torch.full((1, 2, 4, 4), 1.5)
    level = LevelFlow(flow, flow, torch.zeros(1, 1, 4, 4))
    larger = LevelFlow(2 * flow, 2 * flow, level.entropy)
    normal, enlarged = find_cues([level], image, image), find_cues([larger], image, image, 2.0)
    torch.testing.assert_close(normal[:, 3], enlarged[:, 3])
    assert not torch.equal(normal[:, 3], find_cues([larger], image, image)[:, 3])


def test_each_quality_has_its_own_calibration(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "w.safetensors"
    normal, best = some_calibration(0.5), some_calibration(-2.0)
    weights = Weights(SMALL, build(SMALL).state_dict(), calibration=normal)
    path.write_bytes(encode_weights(weights))
    assert dicl_flow.load(path, "cpu", quality="best").calibration == normal  # none of its own
    path.write_bytes(encode_weights(weights.calibrated(QUALITIES["best"], best)))
    found = read_weights(path)
    assert found.calibration == normal
    assert found.quality_calibrations == {"best": best}
    assert not found.about
    assert dicl_flow.load(path, "cpu", quality="best").calibration == best
    assert dicl_flow.load(path, "cpu", quality="fast").calibration == normal
    assert dicl_flow.load(path, "cpu").calibration == normal


@pytest.mark.usefixtures("small_scenes")
def test_calibrate_fits_one_quality_and_keeps_the_others(run, small_weights, tmp_path):
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    normal = replace(read_weights(small_weights), calibration=some_calibration(0.5))
    one.write_bytes(encode_weights(normal))
    arguments = ["-d", "rendered=procedural", "-n", 4, "--size", "32x32", "--threshold", 9, "-q"]
    assert run("calibrate", "-w", one, "-o", two, *arguments, "--quality", "best")[0] == 0
    after = read_weights(two)
    assert after.calibration == normal.calibration
    assert after.quality_calibrations["best"].threshold == 9
    assert "rendered scenes" in after.about["calibration of quality best"]
    assert "normal, best" in run("info", two)[1]


# --- the command line ---------------------------------------------------------------------------


def test_flow_takes_a_quality_and_a_flow_to_begin_from(run, frames, small_weights, tmp_path):
    first, second = tmp_path / "first.flo", tmp_path / "second.flo"
    common = ("-w", small_weights, "--device", "cpu", "--precision", "fp32")
    code, out, _ = run("flow", *frames, "-o", first, *common, "--quality", "best", "--json")
    assert code == 0
    assert json.loads(out)["quality"] == "best"
    best = dicl_flow.load(small_weights, "cpu", "fp32", quality="best")
    np.testing.assert_allclose(read_flow(first), best(*frames).flow, **ROUNDING)
    assert run("flow", *frames, "-o", second, *common, "--initial", first, "-q")[0] == 0
    normal = dicl_flow.load(small_weights, "cpu", "fp32")
    expected = normal(*frames, initial=read_flow(first)).flow
    np.testing.assert_allclose(read_flow(second), expected, **ROUNDING)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--quality", "bets"), "did you mean 'best'"),
        (("--initial", "other.flo"), "the shape (9, 9, 2); frames of 51x37 need (37, 51, 2)"),
        (("--initial", "none.flo"), "no such file"),
        (("--initial", "good.flo", "--backward", "b.flo"), "says nothing of the backward flow"),
        (("--initial", "x.flo"), "x.flo is the input as well"),
    ],
)
def test_bad_requests_are_one_sentence(
    run, frames, small_weights, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    write_flow(tmp_path / "other.flo", np.zeros((9, 9, 2), np.float32))
    write_flow(tmp_path / "good.flo", np.zeros((37, 51, 2), np.float32))
    if "x.flo" in options:
        write_flow(tmp_path / "x.flo", np.zeros((37, 51, 2), np.float32))
    before = sorted(tmp_path.iterdir())
    code, out, err = run("flow", *frames, "-o", "x.flo", "-w", small_weights, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(tmp_path.iterdir()) == before


def test_video_takes_a_quality(run, small_weights, tmp_path):
    for number, frame in enumerate(FRAMES):
        fake_trees.write_image(tmp_path / "in" / f"{number}.png", frame)
    common = ("-w", small_weights, "--device", "cpu", "--precision", "fp32", "-q")
    arguments = (tmp_path / "in", "-o", tmp_path / "flows.npy", *common, "--quality", "best")
    assert run("video", *arguments)[0] == 0
    best = dicl_flow.load(small_weights, "cpu", "fp32", quality="best")
    flows = np.load(tmp_path / "flows.npy")
    for flow, pair in zip(flows, pairwise(FRAMES), strict=True):
        np.testing.assert_allclose(flow, best(*pair).flow, rtol=1e-2, atol=1e-2)


def test_eval_names_the_quality(run, small_weights, tmp_path):
    fake_trees.MAKERS["pairs"](tmp_path / "pairs")
    output = tmp_path / "scores.json"
    data = ("--data", f"pairs={tmp_path / 'pairs'}")
    assert run("eval", *data, "-w", small_weights, "--quality", "best", "-o", output)[0] == 0
    assert "small-best" in output.read_text()


def test_bench_notes_the_quality(run, small_weights, monkeypatch):
    monkeypatch.setattr(cases, "machine_rates", lambda *_: (1e9, 1e9))  # takes its time
    arguments = ("--size", "32x32", "--batch", 1, "--repeats", 1, "--path", "fast-fp32", "--json")
    common = ("-w", small_weights, "--device", "cpu")
    code, out, _ = run("bench", *arguments, *common, "--quality", "best")
    assert code == 0
    assert json.loads(out)["quality"] == "best"


def tiny_weights(path):
    """Of a network that an export traces in seconds."""
    torch.manual_seed(0)
    config = ModelConfig(levels=(LevelConfig(4, 1),), projection=False, context=False)
    path.write_bytes(encode_weights(Weights(config, build(config).state_dict())))
    return path


def test_an_export_for_any_size_has_the_normal_quality(run, tmp_path):
    weights, output = tiny_weights(tmp_path / "tiny.safetensors"), tmp_path / "x.pt2"
    common = ("--format", "torch-export", "-w", weights, "-o", output)
    code, _, err = run("export", "--dynamic", *common, "--quality", "best")
    assert (code, err.count("\n")) == (2, 1)
    assert "quality 'best' scales frames" in err
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "suffix"), [("torch-export", "pt2"), ("onnx", "onnx")])
def test_an_export_of_one_size_has_the_quality_asked_for(run, tmp_path, kind, suffix):
    """What is written was compared with the estimator, of the same quality."""
    weights, output = tiny_weights(tmp_path / "tiny.safetensors"), tmp_path / f"x.{suffix}"
    common = ("--format", kind, "-w", weights, "-o", output, "--size", "28x20", "--json")
    code, out, _ = run("export", *common, "--quality", "best")
    assert code == 0
    assert json.loads(out)["mean_difference_px"] < 1e-3
    if kind == "torch-export":
        frames = [frame[:20, :28] for frame in FRAMES[:2]]
        pair = [torch.from_numpy(frame.transpose(2, 0, 1).copy())[None] for frame in frames]
        flow, _ = torch.export.load(output).module()(*pair)
        best = dicl_flow.load(weights, "cpu", "fp32", "plain", quality="best")
        expected = best(*frames).flow
        np.testing.assert_allclose(flow[0].detach().permute(1, 2, 0), expected, **ROUNDING)
