"""The estimator gives the same flow for every kind of input, at any size."""

import os
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from children import run_child
from conftest import FAST_BYTES, SMALL, needs_bf16
from golden import formula

import dicl_flow
from dicl_flow.accelerated import settings
from dicl_flow.accelerated.settings import Processor
from dicl_flow.config import CUES, Calibration, ModelConfig, Quality
from dicl_flow.errors import InputError, SlowWarning
from dicl_flow.estimation.estimator import FlowEstimator, explain_frame
from dicl_flow.estimation.inputs import flow_batch, image_batch
from dicl_flow.estimation.warping import warp
from dicl_flow.models import LevelFlow, build
from dicl_flow.ops import size_in_multiples

IMAGE1, IMAGE2 = formula.pair(37, 51)


@pytest.fixture(scope="module")
def estimator(small_weights):
    return dicl_flow.load(small_weights, device="cpu", precision="fp32")


def test_result_has_the_size_of_the_images(estimator):
    result = estimator(IMAGE1, IMAGE2)
    assert result.flow.shape == (37, 51, 2)
    assert result.flow.dtype == result.confidence.dtype == np.float32
    assert result.confidence.shape == (37, 51)
    assert 0 <= result.confidence.min() <= result.confidence.max() <= 1


def test_paths_arrays_and_tensors_give_the_same_flow(estimator, frames):
    import cv2

    arrays = [cv2.imread(str(path))[..., ::-1] for path in frames]
    tensors = [torch.from_numpy(a.transpose(2, 0, 1).copy()) for a in arrays]
    reference = estimator(*frames).flow
    np.testing.assert_allclose(estimator(*arrays).flow, reference, atol=1e-5)
    np.testing.assert_allclose(estimator(*tensors).flow, reference, atol=1e-5)
    np.testing.assert_allclose(estimator(*(a / 255 for a in arrays)).flow, reference, atol=1e-3)


def test_a_batch_is_its_pairs(estimator):
    result = estimator(np.stack([IMAGE1, IMAGE2]), np.stack([IMAGE2, IMAGE1]))
    assert result.flow.shape == (2, 37, 51, 2)
    assert len(result) == 2
    for pair, expected in zip(result, [(IMAGE1, IMAGE2), (IMAGE2, IMAGE1)], strict=True):
        np.testing.assert_allclose(pair.flow, estimator(*expected).flow, atol=1e-3)


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (16, 16), (17, 3)])
def test_any_size_from_one_pixel_up(estimator, size):
    image = np.full((*size, 3), 90, np.uint8)
    result = estimator(image, image)
    assert result.flow.shape == (*size, 2)
    assert np.isfinite(result.flow).all()


def test_one_pixel_through_the_paper_network():
    estimator = FlowEstimator(build(), "cpu")
    image = np.zeros((1, 1, 3), np.uint8)
    assert np.isfinite(estimator(image, image).flow).all()


@pytest.mark.heavy
@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=needs_bf16), "fp16"])
def test_reduced_precision_is_near_float32(small_weights, estimator, precision):
    reduced = dicl_flow.load(small_weights, "cpu", precision)
    assert reduced.precision == precision
    result = reduced(IMAGE1, IMAGE2)
    assert result.flow.dtype == np.float32
    difference = np.abs(result.flow - estimator(IMAGE1, IMAGE2).flow)
    assert 0 < difference.mean() < 0.2


@pytest.mark.parametrize(("amx", "precision"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_fast_and_as_precise_as_the_processor_is_quick(
    monkeypatch, small_weights, amx, precision
):
    monkeypatch.setattr(settings, "processor", lambda: Processor(amx=amx))
    estimator = dicl_flow.load(small_weights, "cpu")
    assert (estimator.backend, estimator.precision) == ("fast", precision)
    assert dicl_flow.load(small_weights, "cpu", backend="plain").precision == "fp32"


def test_bf16_on_a_cpu_that_emulates_it_warns_and_says_what_auto_would_be(
    monkeypatch, small_weights
):
    monkeypatch.setattr(settings, "processor", Processor)
    with pytest.warns(SlowWarning, match="no bf16 arithmetic.*'auto' would choose fp32"):
        dicl_flow.load(small_weights, "cpu", "bf16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dicl_flow.load(small_weights, "cpu", "fp32")
        monkeypatch.setattr(settings, "processor", lambda: Processor(bf16=True))
        dicl_flow.load(small_weights, "cpu", "bf16")


def test_threads_that_spin_next_to_other_programs_warn_once(monkeypatch, small_weights):
    estimator = dicl_flow.load(small_weights, "cpu", "fp32")
    settings._warn_of_spinning.cache_clear()
    monkeypatch.setattr(settings, "threads_spin_long", lambda: True)
    monkeypatch.setattr(settings, "_has_gnu_openmp", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    pair = np.zeros((2, 8, 8, 3), np.uint8)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 9.0, 9.0))  # these threads alone
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator(*pair)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    with pytest.warns(SlowWarning, match="import dicl_flow` before torch.*GOMP_SPINCOUNT=10000"):
        estimator(*pair)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator(*pair)


def test_networks_without_a_fast_path_say_so():
    model = build(ModelConfig(matcher="dot", levels=SMALL.levels))
    assert FlowEstimator(model, "cpu").backend == "plain"
    with pytest.raises(InputError, match="backend='plain'"):
        FlowEstimator(model, "cpu", backend="fast")


def test_white_padding_changes_the_border(small_weights):
    torch.manual_seed(0)
    model = build(SMALL)
    plain = FlowEstimator(model, "cpu")(IMAGE1, IMAGE2).flow
    model.config = replace(SMALL, padding="white")
    white = FlowEstimator(model, "cpu")(IMAGE1, IMAGE2).flow
    assert np.abs(plain - white)[:, -4:].max() > 0


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((388, 584), (512, 640)),
        ((436, 1024), (512, 1024)),
        ((375, 1242), (384, 1280)),
        ((1080, 1920), (640, 1024)),
        ((2160, 3840), (640, 1024)),
        ((3000, 20), (3072, 128)),
        ((9000, 20), (6400, 128)),
        ((1340, 1500), (768, 896)),
        ((460, 1360), (512, 1408)),
        ((1, 1), (128, 128)),
    ],
)
def test_sizes_of_the_packaged_weights(size, expected):
    assert size_in_multiples(size, 128, 1024 * 640) == expected


def test_frames_are_resized_and_the_flow_back(monkeypatch):
    """A network that always says (1, 2) px of its own size; the frame is twice as large."""
    model = build(replace(SMALL, padding="resize", max_pixels=32 * 48))
    seen = []

    def fixed(image1, image2):
        seen.append(tuple(image1.shape[-2:]))
        flow = torch.tensor([0.25, 0.5])[None, :, None, None].expand(1, 2, 8, 12)
        return [LevelFlow(flow, flow, torch.zeros(1, 1, 8, 12))]

    monkeypatch.setattr(model, "forward", fixed)
    result = FlowEstimator(model, "cpu", "fp32", "plain")(*formula.pair(64, 96))
    assert seen == [(32, 48)]
    assert result.flow.shape == (64, 96, 2)
    np.testing.assert_allclose(result.flow[..., 0], 2, rtol=1e-5)  # 1 px of 48 is 2 of 96
    np.testing.assert_allclose(result.flow[..., 1], 4, rtol=1e-5)
    np.testing.assert_allclose(result.confidence, 1, rtol=1e-5)


@pytest.fixture
def scaling_and_whole():
    """The same network, one for frames of 32x48 px at most, one for any."""
    torch.manual_seed(0)
    scaling = build(replace(SMALL, padding="resize", max_pixels=32 * 48))
    whole = build(SMALL)
    whole.load_state_dict(scaling.state_dict())
    return scaling, whole


def test_full_size_leaves_frames_and_the_callers_network_as_they_are(scaling_and_whole):
    scaling, whole = scaling_and_whole
    images = formula.pair(30, 50)
    expected = FlowEstimator(whole, "cpu", "fp32", "plain")(*images)
    for backend in ("plain", "fast"):
        found = FlowEstimator(scaling, "cpu", "fp32", backend, full_size=True)(*images)
        np.testing.assert_allclose(found.flow, expected.flow, atol=1e-3)
    assert scaling.config.max_pixels == 32 * 48
    scaled = FlowEstimator(scaling, "cpu", "fp32", "plain")(*images)
    assert np.abs(scaled.flow - expected.flow).max() > 0.1


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("size", "limit", "computed"),
    [
        ((70, 90), None, "whole, seen as 48x32, then as 90x70 padded to 96x80"),
        ((40, 300), FAST_BYTES * 260 * 48, "seen as 112x16, then in tiles of 256x40"),
    ],
)
def test_a_large_frame_at_full_size_starts_from_its_scaled_flow(
    scaling_and_whole, size, limit, computed
):
    scaling, whole = scaling_and_whole
    images = formula.pair(*size)
    first = FlowEstimator(scaling, "cpu", "fp32", "plain")(*images, backward=True)
    last = FlowEstimator(whole, "cpu", "fp32", "fast", limit, quality=Quality("last", start=16))
    found = FlowEstimator(scaling, "cpu", "fp32", "fast", limit, full_size=True)
    assert explain_frame(found, size).value == computed
    result = found(*images, backward=True)
    forward = last(*images, initial=first.flow)
    backward = last(*images[::-1], initial=first.backward.flow)
    for one, expected in ((result, forward), (result.backward, backward)):
        np.testing.assert_allclose(one.flow, expected.flow, atol=1e-3)
        np.testing.assert_allclose(one.confidence, expected.confidence, atol=1e-3)
    sequence = dicl_flow.FlowSequence(found)
    sequence.push(images[0])
    np.testing.assert_allclose(sequence.push(images[1]).flow, forward.flow, atol=1e-3)
    np.testing.assert_allclose(found(*images, initial=first.flow).flow, forward.flow, atol=1e-3)


def test_the_first_pass_over_a_large_frame_needs_its_memory():
    model = build(replace(SMALL, padding="resize", max_pixels=640 * 1024))
    estimator = FlowEstimator(model, "cpu", "fp32", "fast", int(0.1 * 2**30), full_size=True)
    with pytest.raises(InputError, match="too little memory for 1920x1080"):
        estimator.tile(torch.empty(1, 3, 1080, 1920, device="meta"))


@pytest.mark.parametrize("changes", [{"host": "pwcnet", "max_pixels": 32 * 48}, {}])
def test_full_size_is_one_pass_where_there_is_no_other(changes):
    model = build(ModelConfig(levels=SMALL.levels, padding="resize", **changes))
    estimator = FlowEstimator(model, "cpu", "fp32", "plain", full_size=True)
    assert explain_frame(estimator, (64, 128)).value == "whole"


def test_a_limit_below_what_scaled_frames_need_is_refused_and_full_size_has_tiles():
    model = build(replace(SMALL, padding="resize", max_pixels=640 * 1024))
    frame = torch.empty(1, 3, 436, 1024, device="meta")
    limit = int(0.1 * 2**30)
    with pytest.raises(InputError, match=r"0\.10 GiB is too little .* takes at least 0\.22 GiB"):
        FlowEstimator(model, "cpu", "fp32", "fast", limit).tile(frame)
    enough = FlowEstimator(model, "cpu", "fp32", "fast", int(0.22 * 2**30))
    assert enough.tile(frame) == (436, 1024)
    tiled = FlowEstimator(model, "cpu", "fp32", "fast", limit, full_size=True)
    height, width = tiled.tile(frame)
    assert height * width * tiled.engine.bytes_per_pixel() <= limit


@pytest.mark.parametrize("backend", ["plain", "fast"])
def test_a_pickled_estimator_is_the_same_bit_by_bit(backend):
    """One that has been used, with what it keeps for the next frame of that size."""
    torch.manual_seed(0)
    calibration = Calibration(0.5, *[-0.1] * len(CUES))
    estimator = FlowEstimator(build(SMALL), "cpu", "fp32", backend, 1 << 30, calibration)
    expected = estimator(IMAGE1, IMAGE2, backward=True)
    again = pickle.loads(pickle.dumps(estimator))
    found = again(IMAGE1, IMAGE2, backward=True)
    for one, other in ((found, expected), (found.backward, expected.backward)):
        np.testing.assert_array_equal(one.flow, other.flow)
        np.testing.assert_array_equal(one.confidence, other.confidence)
    assert (again.calibration, again.memory_limit) == (calibration, 1 << 30)


@pytest.mark.heavy
def test_a_spawned_process_takes_an_estimator(tmp_path, small_weights):
    """As a pool of workers does: a fresh interpreter that knows nothing but the pickle."""
    estimator = dicl_flow.load(small_weights, "cpu", "fp32")
    pair = IMAGE1[:16, :16], IMAGE2[:16, :16]
    (tmp_path / "pickle").write_bytes(pickle.dumps((estimator, pair)))
    code = (
        "import pickle, sys; estimator, pair = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(abs(estimator(*pair).flow).mean())"
    )
    child = run_child("-c", code, tmp_path / "pickle")
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) == pytest.approx(np.abs(estimator(*pair).flow).mean(), rel=1e-4)


def test_tensors_are_the_result_on_the_device(estimator):
    expected = estimator(IMAGE1, IMAGE2, backward=True)
    found = estimator.tensors(IMAGE1, IMAGE2, backward=True)
    for tensors, arrays in ((found, expected), (found.backward, expected.backward)):
        assert tensors.flow.shape == (2, 37, 51)
        assert tensors.flow.device == estimator.device
        np.testing.assert_array_equal(tensors.flow.permute(1, 2, 0), arrays.flow)
        np.testing.assert_array_equal(tensors.confidence, arrays.confidence)
        np.testing.assert_array_equal(tensors.occlusion, arrays.occlusion)
    found.flow.mul_(2)  # one may go on computing with them
    (torch.ones((), requires_grad=True) * found.flow).sum().backward()


def test_tensors_of_a_batch_have_its_axis(estimator):
    batch = estimator.tensors([IMAGE1, IMAGE2], [IMAGE2, IMAGE1])
    assert batch.flow.shape == (2, 2, 37, 51)
    assert batch.confidence.shape == (2, 37, 51)
    assert batch.backward is None
    assert torch.equal(batch[1].flow, batch.flow[1])
    with pytest.raises(TypeError, match="one pair"):
        batch[0][0]


@pytest.mark.heavy
def test_packaged_weights_beat_no_flow_on_the_demo():
    from dicl_flow.data import demo_pairs, read_sample

    pair = next(pair for pair in demo_pairs() if pair.truth is not None)
    sample = read_sample(pair)
    error = dicl_flow.load(device="cpu")(sample.image1, sample.image2).flow - sample.flow
    assert np.hypot(error[..., 0], error[..., 1])[sample.valid].mean() < 3  # no flow: 17 px


def test_result_saves_and_draws(estimator, tmp_path):
    result = estimator(IMAGE1, IMAGE2)
    result.save(tmp_path / "x.flo")
    np.testing.assert_array_equal(dicl_flow.read_flow(tmp_path / "x.flo"), result.flow)
    assert result.to_rgb().shape == (37, 51, 3)


def test_batch_and_single_results_do_not_pretend(estimator, tmp_path):
    single = estimator(IMAGE1, IMAGE2)
    with pytest.raises(TypeError, match="one pair"):
        len(single)
    batch = estimator([IMAGE1], [IMAGE2])
    with pytest.raises(InputError, match=r"result\[0\]"):
        batch.save(tmp_path / "x.flo")
    with pytest.raises(InputError, match=r"result\[0\]"):
        batch.to_rgb()


def test_images_of_different_size_are_refused(estimator):
    with pytest.raises(InputError, match="51x37 and 51x36"):
        estimator(IMAGE1, IMAGE2[:-1])
    with pytest.raises(InputError, match="2 x 51x37 and 51x37"):
        estimator([IMAGE1, IMAGE1], [IMAGE2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cpu:x"}, "unknown device"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"backend": "fsat"}, "did you mean 'fast'"),
    ],
)
def test_options_that_do_not_exist_are_refused(small_weights, options, message):
    with pytest.raises(InputError, match=message):
        dicl_flow.load(small_weights, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_not_replaced(small_weights):
    with pytest.raises(InputError, match="no cuda device on this machine"):
        dicl_flow.load(small_weights, device="cuda")


@pytest.mark.heavy
def test_real_pair_runs_at_its_own_size(estimator, datasets):
    folder = datasets / "KITTI2015/training/image_2"
    result = estimator(folder / "000010_10.png", folder / "000010_11.png")
    assert result.flow.shape == (375, 1242, 2)


@pytest.fixture
def every_warning():
    """Let torch repeat its warnings, which it gives once in a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "LA", "CMYK"])
def test_an_image_of_pil_is_an_array(mode):
    image_module = pytest.importorskip("PIL.Image")
    array = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    picture = image_module.fromarray(array).convert(mode)
    expected = np.array(picture.convert("RGB"))
    tensor, is_batch = image_batch(picture)
    assert not is_batch
    assert torch.equal(tensor, image_batch(expected)[0])
    assert torch.equal(image_batch([picture, picture])[0], image_batch([expected, expected])[0])


@pytest.mark.usefixtures("every_warning")
@pytest.mark.filterwarnings("error")
def test_read_only_arrays_are_taken():
    image, flow = np.zeros((8, 9, 3), np.uint8), np.zeros((8, 9, 2), np.float32)
    image.flags.writeable = flow.flags.writeable = False
    frames, _ = image_batch(image)
    assert flow_batch(flow, frames).shape == (1, 2, 8, 9)
    assert warp(image, flow).shape == image.shape


def test_sizes_are_width_by_height():
    images = [np.zeros((8, 9, 3), np.uint8), np.zeros((8, 10, 3), np.uint8)]
    with pytest.raises(InputError, match="must have one size, got 9x8, 10x8"):
        image_batch(images)
    with pytest.raises(InputError, match="must have one size, got 9x8 and 10x8"):
        warp(images[0], np.zeros((8, 10, 2), np.float32))


@pytest.mark.parametrize("mode", ["I", "I;16", "I;16B"])
def test_integers_of_pil_have_16_bits(mode):
    image_module = pytest.importorskip("PIL.Image")
    values = np.array([[0, 1, 255], [256, 40000, 65535]], "<i4" if mode == "I" else ">u2")
    values = values.astype("<u2") if mode == "I;16" else values
    picture = image_module.frombytes(mode, (3, 2), values.tobytes())
    seen, is_batch = image_batch(picture)
    assert not is_batch
    assert torch.equal(seen, image_batch(values.astype(np.uint16))[0])


@pytest.mark.parametrize("value", [-1, 65536])
def test_integers_of_pil_that_need_more_bits_are_refused(value):
    image_module = pytest.importorskip("PIL.Image")
    picture = image_module.fromarray(np.array([[0, value]], np.int32))
    with pytest.raises(InputError, match=f"mode I must have 16 bits.* (to {value}|{value} to)"):
        image_batch(picture)
