"""The accelerated network gives the flow of the plain one on the CPU."""

import threading

import numpy as np
import pytest
import torch
from conftest import FAST_BYTES, HAS_BF16, SMALL
from golden import formula
from networks import randomize_norms_and_biases

import dicl_flow
from dicl_flow.accelerated import cpu, settings
from dicl_flow.accelerated.cpu import AcceleratedDiclFlow, DirectMatcher, FactoredMatcher
from dicl_flow.accelerated.folded import folded_block
from dicl_flow.accelerated.recording import BYTES_KEPT, MOST_KEPT, surplus
from dicl_flow.data import demo_pairs
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.estimation.pipeline import in_tiles, smallest_tile, tile_size
from dicl_flow.files import read_image
from dicl_flow.models import build
from dicl_flow.models.blocks import ConvBlock
from dicl_flow.models.matching import build_matcher
from dicl_flow.ops import warp
from dicl_flow.weights import load_model
from dicl_flow.weights.legacy import import_legacy


@pytest.fixture(scope="module")
def golden_model(checkpoint):
    return load_model(import_legacy(checkpoint))


@pytest.fixture(scope="module")
def small_model():
    torch.manual_seed(1)
    return randomize_norms_and_biases(build(SMALL))


def flow_of(radius, *, height=10, width=14):
    """A flow that leaves the frame on all four sides, by several pixels."""
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    return ((radius + 1.7) * torch.stack([x, y]))[None].double()


@pytest.mark.parametrize(
    ("kind", "args", "options"),
    [
        ("plain", (5, 7), {}),
        ("strided", (5, 7), {"stride": 2}),
        ("dilated", (5, 7), {"dilation": 3}),
        ("up", (5, 7), {"up": True}),
        ("without norm", (5, 7), {"norm": False}),
    ],
)
def test_folding_keeps_what_a_block_computes(kind, args, options):
    block = randomize_norms_and_biases(ConvBlock(*args, **options)).double()
    x = torch.randn(2, 5, 12, 8).double()
    with torch.no_grad():
        torch.testing.assert_close(folded_block(block, torch.float64)(x), block(x))
        single = folded_block(block, torch.float32)(x.float())
        torch.testing.assert_close(single.double(), block(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("at_once", [1, 40_000, 1 << 30])  # bytes: two rows, some, all of them
@pytest.mark.parametrize("size", [(2, 64), (66, 130), (128, 256)])
def test_the_stem_in_strips_is_the_whole_stem(monkeypatch, small_model, at_once, size):
    monkeypatch.setattr(cpu, "_AT_ONCE", at_once)
    stem = AcceleratedDiclFlow(small_model).features.stem
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        expected = small_model.features.stem(images)
        torch.testing.assert_close(stem(images), expected, atol=1e-4, rtol=1e-4)  # as when folded


both_versions = pytest.mark.parametrize("version", [DirectMatcher, FactoredMatcher])


@both_versions
@pytest.mark.parametrize("scene", ["whole", "leaves the frame", "holes", "nothing to see"])
@pytest.mark.parametrize("size", [(10, 14), (2, 2), (4, 20)])
def test_matchers_for_a_cpu_are_exact(version, scene, size):
    torch.manual_seed(0)
    matcher = randomize_norms_and_biases(build_matcher("dicl", 6, 3)).double()
    features1, features2 = torch.randn(2, 2, 6, *size).double().unbind(0)
    if scene == "leaves the frame":
        features2 = warp(features2, flow_of(3, height=size[0], width=size[1]).expand(2, -1, -1, -1))
    if scene == "holes":
        features2 = features2 * (torch.rand(2, 1, *size) > 0.2)
    if scene == "nothing to see":
        features2 = 0 * features2
    with torch.no_grad():
        expected = matcher(features1, features2)
        result = version(matcher, torch.float64)(features1, features2)
    torch.testing.assert_close(result, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(2, 2), (2, 9), (12, 20)])
def test_the_warp_of_a_cpu_equals_the_plain_one(dtype, size):
    flow = 4 * torch.randn(3, 2, *size, dtype=torch.promote_types(dtype, torch.float32))
    flow[1] = flow[1].round()  # from pixel to pixel, those of the border included
    flow[2, :, 0] = 1e6
    features = torch.rand(3, 5, *size).to(dtype)
    found, expected = cpu.warp(features, flow), warp(features, flow)
    rounding = max(1e-5, torch.finfo(dtype).eps)
    torch.testing.assert_close(found, expected, atol=rounding, rtol=rounding)
    assert torch.equal(found != 0, expected != 0)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_the_warp_of_a_cpu_survives_any_flow():
    flow = torch.full((1, 2, 2, 4), torch.inf)
    flow[0, :, 0] = torch.tensor([0, torch.nan, -torch.inf, 1e38])
    found = cpu.warp(torch.ones(1, 3, 2, 4), flow)
    assert found[0, :, 0, 0].eq(1).all()
    assert found.sum() == 3


@both_versions
def test_another_matching_net_needs_no_other_code_on_a_cpu(version):
    """A wider window, other widths and one layer more: all are read from the net."""
    torch.manual_seed(0)
    matcher = build_matcher("dicl", 6, 2)
    net = matcher.net
    net[0], net[1] = ConvBlock(12, 10, kernel=5), ConvBlock(10, 128, stride=2)
    net.insert(2, ConvBlock(128, 128))
    matcher = randomize_norms_and_biases(matcher).double()
    maps = torch.randn(2, 1, 6, 8, 10).double() * (torch.rand(2, 1, 1, 8, 10) > 0.2)
    with torch.no_grad():
        result = version(matcher, torch.float64)(*maps)
        torch.testing.assert_close(result, matcher(*maps), atol=1e-10, rtol=0)


@both_versions
def test_chunks_do_not_change_the_scores(monkeypatch, version):
    torch.manual_seed(0)
    matcher = randomize_norms_and_biases(build_matcher("dicl", 4, 2)).double()
    maps = torch.randn(2, 3, 4, 8, 6).double()
    results = []
    for budget in (1, 100_000, 1 << 30):
        monkeypatch.setitem(settings._AT_ONCE, "cpu", budget)
        with torch.no_grad():
            results.append(version(matcher, torch.float64)(*maps))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-12, rtol=0)


@pytest.mark.heavy
def test_whole_network_equals_the_plain_one_in_float64(golden_model, golden_images):
    images = [image[..., :128, :128] for image in golden_images]
    with torch.no_grad():
        expected = golden_model.double()(*images)
        result = AcceleratedDiclFlow(golden_model, torch.float64)(*images)
    golden_model.float()
    for fast, plain in zip(result, expected, strict=True):
        for a, b in zip(fast, plain, strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=0)


def full_size_difference(model, precision, images):
    flows = [
        FlowEstimator(model, "cpu", chosen, backend)(*images).flow
        for chosen, backend in (("fp32", "plain"), (precision, "fast"))
    ]
    return np.linalg.norm(flows[0] - flows[1], axis=-1)


@pytest.mark.heavy
def test_float32_stays_within_the_promise(golden_model):
    difference = full_size_difference(golden_model, "fp32", formula.pair(120, 250))
    assert difference.mean() <= 1e-3
    assert (difference > 2e-2).mean() <= 1e-4


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.heavy
def test_reduced_precision_stays_near(golden_model, small_model, precision):
    native = precision == "bf16" and HAS_BF16  # else it is slow: a small case will do
    model, size = (golden_model, (120, 120)) if native else (small_model, (16, 24))
    difference = full_size_difference(model, precision, formula.pair(*size))
    # CPUs that compute in float16 may sum in it, too: some of its bits are lost then
    exact_sums = precision == "fp16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    assert 0 < difference.mean() < (0.03 if exact_sums else 0.2)


@pytest.mark.parametrize("units", [True, False])
def test_matrix_units_get_pairs(small_model, monkeypatch, units):
    monkeypatch.setattr(cpu, "processor", lambda: settings.Processor(amx=units))
    network = AcceleratedDiclFlow(small_model, torch.bfloat16)
    chosen = {type(level.matcher) for level in network.levels.values()}
    assert chosen == {DirectMatcher if units else FactoredMatcher}


def test_sizes_and_batches_may_change_call_by_call(small_model):
    plain = FlowEstimator(small_model, "cpu", "fp32", "plain")
    fast = FlowEstimator(small_model, "cpu", "fp32", "fast")
    for batch, height, width in ((1, 37, 51), (3, 16, 33), (1, 64, 16), (2, 37, 51)):
        images = torch.rand(2, batch, 3, height, width)
        for a, b in zip(fast.estimate(*images), plain.estimate(*images), strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=0)


@both_versions
def test_another_layer_at_half_the_size_is_accelerated_as_it_is(version):
    torch.manual_seed(0)
    matcher = build_matcher("dicl", 6, 2)
    matcher.net.insert(3, ConvBlock(128, 128))
    matcher = randomize_norms_and_biases(matcher).double()
    maps = torch.randn(2, 2, 6, 8, 10).double()
    with torch.no_grad():
        found = version(matcher, torch.float64)(*maps)
        torch.testing.assert_close(found, matcher(*maps), atol=1e-10, rtol=0)


def test_features_can_be_kept_for_the_next_pair(small_model):
    fast = AcceleratedDiclFlow(small_model)
    image1, image2 = 2 * torch.rand(2, 1, 3, 32, 48) - 1
    with torch.no_grad():
        expected = fast(image1, image2)[-1]
        kept = fast.flow_from_features(fast.features(image1), fast.features(image2), image1)[-1]
    torch.testing.assert_close(kept.refined, expected.refined, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_folded_stays_as_it_was(kind, dtype):
    model = randomize_norms_and_biases(build(SMALL))  # a bias of 0 would stay 0
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    if kind == "cpu":
        AcceleratedDiclFlow(model, dtype)
    else:
        pytest.importorskip("triton")
        from dicl_flow.accelerated.cuda import KernelDiclFlow

        KernelDiclFlow(model, dtype)
    torch.testing.assert_close(model.state_dict(), before, atol=0, rtol=0)


def test_two_estimators_in_two_threads(small_model):
    images = [torch.rand(2, 1, 3, *size) for size in ((32, 48), (40, 24))]
    estimators = [FlowEstimator(small_model, "cpu", "fp32", "fast") for _ in images]
    expected = [e.estimate(*pair)[0] for e, pair in zip(estimators, images, strict=True)]
    found: list[list[torch.Tensor]] = [[], []]

    def work(index):
        found[index] = [estimators[index].estimate(*images[index])[0] for _ in range(5)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for flows, reference in zip(found, expected, strict=True):
        assert len(flows) == 5
        for flow in flows:
            torch.testing.assert_close(flow, reference)


def test_without_onednn_the_answer_is_the_same(small_model, monkeypatch):
    images = 2 * torch.rand(2, 1, 3, 32, 48) - 1
    with torch.no_grad():
        expected = AcceleratedDiclFlow(small_model)(*images)[-1].refined
        monkeypatch.setattr(settings, "processor", settings.Processor)
        found = AcceleratedDiclFlow(small_model)(*images)[-1].refined
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_tiles_cover_the_frame_and_blend_to_what_they_agree_on():
    image = torch.rand(1, 3, 700, 900)
    seen = []

    def estimate(image1, image2):
        seen.append(tuple(image1.shape[-2:]))
        return image1

    tile = tile_size((700, 900), 512 * 512, 128)
    torch.testing.assert_close(in_tiles(estimate, tile, image, image), image)
    assert len(seen) > 1
    assert tile in seen
    assert tile[0] * tile[1] <= 512 * 512


def test_frames_that_fit_are_not_cut():
    assert tile_size((436, 1024), 512 * 1024, 128) == (436, 1024)


@pytest.mark.parametrize("size", [(600, 700), (100, 600), (600, 300), (256, 256)])
def test_the_smallest_tile_is_a_tile(size):
    """Narrow frames too: they are cut along their length only."""
    tile = smallest_tile(size, 128)
    assert tile_size(size, tile[0] * tile[1], 128) == tile
    image = torch.rand(1, 3, *size)
    torch.testing.assert_close(in_tiles(lambda one, two: one, tile, image, image), image)


def test_too_little_memory_names_the_least(small_model):
    frame = torch.empty(1, 3, 2000, 2000, device="meta")
    with pytest.raises(InputError, match=r"takes at least 0\.04 GiB; raise `memory_limit`"):
        FlowEstimator(small_model, "cpu", "fp32", "fast", 1 << 20).tile(frame)
    enough = FlowEstimator(small_model, "cpu", "fp32", "fast", 256 * 256 * FAST_BYTES).tile(frame)
    assert enough == (256, 256)


@pytest.mark.heavy
def test_an_estimate_beyond_its_memory_is_tiled(small_model, monkeypatch):
    limit = 64 * 256 * FAST_BYTES
    estimator = FlowEstimator(small_model, "cpu", "fp32", "fast", limit)
    sizes = []
    whole = estimator.pipeline._one_way

    def spy(image1, image2):
        sizes.append(tuple(image1.shape[-2:]))
        return whole(image1, image2)

    monkeypatch.setattr(estimator.pipeline, "_one_way", spy)
    flow, confidence = estimator.estimate(*torch.rand(2, 1, 3, 64, 400))
    assert flow.shape == (1, 2, 64, 400)
    assert confidence.shape == (1, 1, 64, 400)
    assert flow.isfinite().all()
    assert sizes == [(64, 256), (64, 256), (64, 144)]


@pytest.mark.heavy
def test_packaged_weights_give_the_same_answer():
    """A part of the demo's film, with trained weights: float32 to rounding, reduced nearly."""
    pair = demo_pairs()[0]
    images = [read_image(path)[100:228, 200:456] for path in (pair.image1, pair.image2)]
    chosen = dicl_flow.load(device="cpu").precision
    ways = {"plain": "fp32", "fast": "fp32", **({"reduced": chosen} if chosen != "fp32" else {})}
    flows = {
        name: dicl_flow.load(
            device="cpu", precision=precision, backend="plain" if name == "plain" else "fast"
        )(*images).flow
        for name, precision in ways.items()
    }
    distance = {name: np.linalg.norm(flows[name] - flows["plain"], axis=2) for name in flows}
    assert distance["fast"].mean() <= 1e-3
    assert (distance["fast"] > 2e-2).mean() <= 1e-4
    assert distance.get("reduced", np.zeros(1)).mean() <= 0.1


@pytest.mark.parametrize(
    ("sizes", "dropped"),
    [
        ({"only": 3 * BYTES_KEPT}, []),
        ({"old": 1, "new": BYTES_KEPT - 1}, []),
        ({"old": 1, "new": BYTES_KEPT}, ["old"]),
        ({"a": 1, "b": BYTES_KEPT, "c": 1, "d": 1}, ["a", "b"]),
        ({"a": BYTES_KEPT, "b": 1, "c": 2 * BYTES_KEPT}, ["a", "b"]),
        (dict.fromkeys(range(MOST_KEPT), 1), []),
        (dict.fromkeys(range(MOST_KEPT + 2), 1), [0, 1]),
    ],
)
def test_the_oldest_recordings_go_if_there_are_too_many_or_too_large_ones(sizes, dropped):
    assert surplus(sizes) == dropped
