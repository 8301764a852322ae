"""int8: near those in float32, whatever frames and batches; refused else."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conftest import write_weights
from networks import randomize_norms_and_biases

import dicl_flow
from dicl_flow.accelerated import private, settings
from dicl_flow.accelerated.cpu import AcceleratedDiclFlow
from dicl_flow.accelerated.extremes import measure_extremes
from dicl_flow.accelerated.folded import FoldedConv, up_to_corners
from dicl_flow.accelerated.int8 import (
    Int8Block,
    Int8Conv,
    Int8DiclFlow,
    Int8ImageConv,
    Int8Matcher,
    RoundedConv,
    corners_to_pixels,
)
from dicl_flow.accelerated.settings import Processor
from dicl_flow.config import LIVE, LevelConfig, ModelConfig
from dicl_flow.errors import InputError
from dicl_flow.estimation import compute
from dicl_flow.estimation.compute import choose_compute, int8_extremes
from dicl_flow.estimation.inputs import demo_frames
from dicl_flow.evaluation.calibrate import find_extremes
from dicl_flow.models import build, own_keys
from dicl_flow.models.blocks import ConvBlock
from dicl_flow.weights import LiveParts, encode_weights, load_model, read_weights

DEEP = ModelConfig(
    levels=(LevelConfig(8, 2), LevelConfig(4, 1, ((8, 1), (16, 2), (16, 4), (8, 1))))
)
"""Without a context net, and with one of layers that are int8 in "live"."""
needs_vnni = pytest.mark.skipif(not settings.processor().vnni, reason="no VNNI on this processor")


@pytest.fixture(scope="module")
def both():
    """A network of two levels in float32, and in int8."""
    torch.manual_seed(1)
    model = randomize_norms_and_biases(build(DEEP)).eval()
    images = 2 * torch.rand(2, 2, 3, 64, 96) - 1
    extremes = measure_extremes(model, [tuple(images)])
    return AcceleratedDiclFlow(model), Int8DiclFlow(model, extremes)


@pytest.fixture(scope="module")
def wide():
    """The one in int8, its features and context nets, too."""
    torch.manual_seed(1)
    model = randomize_norms_and_biases(build(DEEP)).eval()
    images = 2 * torch.rand(2, 2, 3, 64, 96) - 1
    return Int8DiclFlow(model, measure_extremes(model, [tuple(images)]), widely=True)


@needs_vnni
def test_a_convolution_rounds_once():
    torch.manual_seed(0)
    x = torch.randint(0, 256, (2, 32, 9, 12), dtype=torch.uint8)
    weight, bias = 0.01 * torch.randn(48, 32, 3, 3), torch.randn(48)
    scale, next_scale = 0.01 + 0.01 * torch.rand(32), 0.02 + 0.02 * torch.rand(48)
    conv = Int8Conv((1, 1, 1), weight, bias, scale, next_scale)
    found = conv(x.contiguous(memory_format=torch.channels_last))
    assert found.dtype == torch.uint8
    weight = conv.weight.float() * conv.steps[:, None, None, None]
    exact = F.conv2d(x.float(), weight, conv.bias, padding=1).clamp(0, 255)
    assert (found.float() - exact).abs().max() <= 0.51
    assert ((found > 0) & (found < 255)).float().mean() > 0.1


@needs_vnni
def test_the_first_layer_sees_frames_as_bytes_up_to_the_border():
    torch.manual_seed(0)
    block = randomize_norms_and_biases(torch.nn.Sequential(ConvBlock(3, 8))).eval()[0]
    levels = torch.randint(0, 256, (2, 3, 9, 12)).float()
    images = levels / 127.5 - 1
    with torch.inference_mode():
        exact = block(images)
        scale = exact.amax((0, 2, 3)).clamp(min=0.1) / 255
        conv = Int8ImageConv(block, scale)
        found = conv(images)
        assert ((found * scale[:, None, None] - exact).abs() < 0.03 * exact.max()).all()
        assert (conv((levels + 0.4) / 127.5 - 1) == found).all()  # less than half a step
        assert (conv((levels - 0.6) / 127.5 - 1) != found).any()


@needs_vnni
@pytest.mark.parametrize("widely", [False, True])
@pytest.mark.parametrize("scene", ["whole", "holes", "leaves the frame", "nothing to see"])
def test_scores_are_near_those_in_float32(both, wide, scene, widely):
    exact, int8 = both[0], wide if widely else both[1]
    torch.manual_seed(2)
    with torch.inference_mode():
        features = exact.features(2 * torch.rand(4, 3, 64, 96) - 1)
        for maps, (stride, level) in zip(features, exact.levels.items(), strict=True):
            assert maps.shape[2] == 64 // int(stride)
            features1, features2 = maps.chunk(2)
            if scene == "holes":
                features2 = features2 * (torch.rand(2, 1, *features2.shape[2:]) > 0.2)
            if scene == "leaves the frame":
                features2 = features2.roll(5, 3) * (torch.arange(features2.shape[3]) > 4)
            if scene == "nothing to see":
                features2 = 0 * features2
            expected = level.matcher(features1, features2)
            matcher = int8.levels[stride].matcher
            assert isinstance(matcher, Int8Matcher)
            difference = matcher(features1, features2) - expected
            assert difference.square().mean().sqrt() < 0.05 * expected.std()


def test_pixels_of_corners():
    """What `up_to_corners` computes is what a transposed convolution computes."""
    conv = torch.nn.ConvTranspose2d(3, 5, 4, 2, 1)
    x = torch.randn(2, 3, 4, 6)
    weight, bias = up_to_corners(conv.weight.detach(), conv.bias.detach())
    corners = F.conv2d(x, weight, bias, padding=1)
    torch.testing.assert_close(corners_to_pixels(corners), conv(x).detach())


@needs_vnni
def test_features_are_near_those_in_float32(both, wide):
    images = 2 * torch.rand(4, 3, 64, 96) - 1
    with torch.inference_mode():
        pairs = [*zip(both[0].features(images), wide.features(images), strict=True)]
    assert len(pairs) == len(DEEP.levels)
    for exact, found in pairs:
        assert found.dtype == torch.float32
        assert 0 < (found - exact).square().mean().sqrt() < 0.05 * exact.std()


@needs_vnni
def test_corrections_are_near_those_in_float32(both, wide):
    """The context nets', whose first layer and last one see and give the flow in float32."""
    exact, mine = (one.levels["4"].context for one in (both[0], wide))
    kinds = [type(layer) for layer in mine.layers]
    assert kinds == [RoundedConv, Int8Block, Int8Block, Int8Block, FoldedConv]
    images = 2 * torch.rand(2, 2, 3, 64, 96) - 1
    with torch.inference_mode():
        features, level = both[0].features(images[0])[-1], both[0](*images)[-1]
        seen = (level.matched, level.entropy, features, images[0])
        expected = exact(*seen)
        difference = mine(*seen) - expected
    assert 0 < difference.square().mean().sqrt() < 0.05 * expected.std()


@needs_vnni
@pytest.mark.parametrize(("quality", "kind"), [("live", torch.uint8), ("normal", torch.float32)])
def test_only_in_live_more_than_the_matching_nets_is_int8(quality, kind):
    model = dicl_flow.load(device="cpu", precision="int8", quality=quality).model
    with torch.inference_mode():
        maps = model.features.descend(torch.zeros(1, 3, 128, 128))
    assert {one.dtype for one in maps.values()} == {kind}
    layers = model.levels["4"].context.layers
    assert (type(layers[2]) is Int8Block) == (quality == "live")


@needs_vnni
@pytest.mark.parametrize("widely", [False, True])
def test_a_batch_and_a_chunk_change_nothing(both, wide, widely):
    int8 = wide if widely else both[1]
    images = 2 * torch.rand(2, 3, 3, 64, 96) - 1
    with torch.inference_mode():
        together = int8(*images)[-1].refined
        for number in range(3):
            alone = int8(*images[:, number : number + 1])[-1].refined
            torch.testing.assert_close(alone[0], together[number], atol=1e-4, rtol=0)
        for level in int8.levels.values():
            level.matcher.memory_limit = 1  # one displacement at a time
        torch.testing.assert_close(int8(*images)[-1].refined, together, atol=1e-4, rtol=0)


@needs_vnni
def test_the_packaged_weights_lose_little():
    frames = [frame[0] for frame in demo_frames((192, 256))]
    exact, int8 = (dicl_flow.load(device="cpu", precision=name) for name in ("fp32", "int8"))
    assert {type(level.matcher) is Int8Matcher for level in int8.model.levels.values()} == {
        False,  # the coarse levels
        True,
    }
    flows = [torch.from_numpy(estimator(*frames).flow) for estimator in (exact, int8)]
    assert 0 < (flows[0] - flows[1]).norm(dim=-1).mean() < 0.05


def test_weights_keep_the_extremes_and_auto_is_then_int8(monkeypatch, tmp_path, small_weights):
    weights = read_weights(small_weights)
    extremes = int8_extremes(load_model(weights))
    path = tmp_path / "calibrated.safetensors"
    path.write_bytes(encode_weights(replace(weights, extremes=extremes)))
    found = read_weights(path)
    assert found.tensors.keys() == weights.tensors.keys()
    torch.testing.assert_close(dict(found.extremes), extremes, rtol=0, atol=0)
    for kind, precision in [
        (Processor(onednn=True, vnni=True), "int8"),
        (Processor(onednn=True, vnni=True, amx=True), "bf16"),
        (Processor(onednn=True), "fp32"),
    ]:
        monkeypatch.setattr(settings, "processor", lambda kind=kind: kind)
        assert choose_compute(found.config, "cpu", int8=True).precision == precision
        assert choose_compute(found.config, "cpu", "auto", "plain", int8=True).precision == "fp32"
        assert dicl_flow.load(weights, "cpu").precision != "int8"


@needs_vnni
def test_kept_extremes_are_used_as_they_are(monkeypatch, small_weights):
    weights = read_weights(small_weights)
    kept = replace(weights, extremes=int8_extremes(load_model(weights)))
    measured = dicl_flow.load(weights, "cpu", "int8")
    monkeypatch.setattr(compute, "int8_extremes", None)
    frames = [frame[0] for frame in demo_frames((128, 192))]
    flows = [one(*frames).flow for one in (dicl_flow.load(kept, "cpu", "int8"), measured)]
    assert (flows[0] == flows[1]).all()


def test_extremes_fit_the_context_nets_of_live_too(tmp_path):
    context = ((8, 1), (8, 1))
    config = ModelConfig(levels=(LevelConfig(8, 2, context), LevelConfig(4, 1, context)))
    whole = read_weights(write_weights(tmp_path / "whole.safetensors", config))
    smaller = load_model(whole, LIVE).state_dict()
    radii = config.smaller(LIVE.radii)
    own = {key: smaller[key] for key in own_keys(smaller, radii)}
    own["levels.8.context.layers.0.bn.bias"] += 100
    weights = replace(whole, live=LiveParts(radii, own))
    found, normal = find_extremes(weights), find_extremes(whole)
    seen = found["8.context.1"][:8]  # by the layer behind the first one
    assert (seen > 50).all()
    assert (seen > normal["8.context.1"][:8]).all()
    assert all((found[name] >= normal[name]).all() for name in normal if ".context." in name)
    assert all((found[name] == normal[name]).all() for name in normal if ".context." not in name)


@pytest.fixture(scope="module")
def deep_weights(tmp_path_factory):
    weights = read_weights(write_weights(tmp_path_factory.mktemp("deep") / "w.safetensors", DEEP))
    return replace(weights, extremes=int8_extremes(load_model(weights)))


@needs_vnni
@pytest.mark.parametrize("change", ["missing", "narrow"])
@pytest.mark.parametrize(
    ("place", "quality"),
    [("4.0", "normal"), ("features.outputs.4", "live"), ("4.context.1", "live")],
)
def test_extremes_of_another_network_are_refused(deep_weights, change, place, quality):
    extremes = dict(deep_weights.extremes)
    layer = extremes.pop(place)
    if change == "narrow":
        extremes[place] = layer[..., 1:]
    with pytest.raises(InputError, match=r"does not fit their network; run 'dicl-flow calibrate'"):
        dicl_flow.load(replace(deep_weights, extremes=extremes), "cpu", "int8", quality=quality)


@pytest.mark.skipif(not torch._nnpack_available(), reason="torch has no NNPACK for this processor")
def test_an_arm_processor_measures_the_same_extremes(monkeypatch, small_weights):
    model = load_model(read_weights(small_weights))
    here = int8_extremes(model)
    monkeypatch.setattr(settings, "processor", lambda: Processor(onednn=True, acl=True))
    torch.testing.assert_close(int8_extremes(model), here, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "backend"), [(Processor(onednn=True), "auto"), (Processor(vnni=True), "plain")]
)
def test_it_is_refused_where_it_cannot_be(monkeypatch, kind, backend):
    monkeypatch.setattr(settings, "processor", lambda: kind)
    with pytest.raises(InputError, match="precision 'int8' needs an x86 processor with VNNI"):
        choose_compute(ModelConfig(), "cpu", "int8", backend)


@pytest.mark.parametrize(
    ("limit", "vnni"), [("AVX512_CORE_VNNI", True), ("avx512_core_amx", True), ("AVX2", False)]
)
def test_onednn_may_be_kept_from_using_it(monkeypatch, limit, vnni):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    monkeypatch.setattr(private, "has_int8_convolutions", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert settings.processor.__wrapped__().vnni == vnni
