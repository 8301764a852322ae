"""Kernels of inference equal plain torch, on a GPU or in Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
triton = pytest.importorskip("triton")

from conftest import SMALL, slow_interpreted  # noqa: E402
from networks import randomize_norms_and_biases  # noqa: E402

from dicl_flow.accelerated import estimate  # noqa: E402
from dicl_flow.accelerated.context import (  # noqa: E402
    context_input,
    refine,
)
from dicl_flow.accelerated.cuda import KernelLevel, join  # noqa: E402
from dicl_flow.accelerated.first_layer import cuda as first_layer  # noqa: E402
from dicl_flow.accelerated.merge import merge_input  # noqa: E402
from dicl_flow.accelerated.readout import readout  # noqa: E402
from dicl_flow.accelerated.sampling import warp as kernel_warp  # noqa: E402
from dicl_flow.accelerated.score_layers import Tail  # noqa: E402
from dicl_flow.accelerated.stem import image_layer, normalized  # noqa: E402
from dicl_flow.config import CUES, Calibration  # noqa: E402
from dicl_flow.estimation.inputs import Feeding  # noqa: E402
from dicl_flow.estimation.pipeline import Finish, KernelFinish, PassResult, View  # noqa: E402
from dicl_flow.models import LevelFlow, build  # noqa: E402
from dicl_flow.models.blocks import ConvBlock  # noqa: E402
from dicl_flow.models.matching import MatchingNet  # noqa: E402
from dicl_flow.ops import (  # noqa: E402
    INSIDE,
    displacement_probability,
    expected_displacement,
    normalize,
    normalized_entropy,
    resize,
    upsample_flow,
    warp,
)

pytestmark = pytest.mark.heavy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = (10, 12) if DEVICE == "cuda" else (6, 8)  # of a level: the interpreter is slow
LAST = torch.channels_last


def add_up(patches):
    """(N, H/2 + 1, 4, W/2 + 1, 4) -> (N, H, W)."""
    _, down, _, across, _ = patches.shape
    columns = patches.float().permute(0, 2, 4, 1, 3).flatten(3, 4).flatten(1, 2)
    size = (2 * down - 2, 2 * across - 2)
    return torch.nn.functional.fold(columns, size, 4, padding=2, stride=2)[:, 0]


SCORE_CASES = [
    (torch.float32, 3e-5, (24, 12)),
    (torch.float16, 3e-3, (24, 12)),
    (torch.float16, 3e-3, (64, 32)),
]
if DEVICE == "cuda":  # the interpreter multiplies no bfloat16
    SCORE_CASES += [(torch.bfloat16, 2e-2, (64, 32))]


@pytest.mark.parametrize(("dtype", "rounding", "widths"), SCORE_CASES)
def test_score_patches_add_up_to_the_last_two_layers(dtype, rounding, widths):
    torch.manual_seed(0)
    net = MatchingNet(8)
    net[-2], net[-1] = ConvBlock(*widths, up=True), torch.nn.Conv2d(widths[1], 1, 3, padding=1)
    net, x = randomize_norms_and_biases(net), torch.randn(3, widths[0], 5, 7)
    expected = net.score(net.up(x))[:, 0] - net.score.bias
    tail = Tail(net, dtype).to(DEVICE)
    patches = tail.room(5, 10, 14).fill_(7)
    tail(x.to(DEVICE, dtype, memory_format=LAST), patches[1:4])
    assert (patches[[0, 4]] == 7).all()
    found, bound = add_up(patches[1:4]).cpu(), rounding * expected.abs().max().item()
    torch.testing.assert_close(found, expected, atol=bound, rtol=0)


def test_warp_kernel_equals_the_plain_warp():
    torch.manual_seed(0)
    features = torch.randn(2, 5, 6, 9, device=DEVICE).to(memory_format=LAST)
    flow = 6 * torch.randn(2, 2, 6, 9, device=DEVICE)
    flow[0] = 0  # exactly on the pixels, the border ones included
    found, visible, same = kernel_warp(features, flow, INSIDE)
    expected = warp(features, flow)
    torch.testing.assert_close(same, flow, atol=0, rtol=0)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(visible, (expected != 0).any(1).to(torch.int8))


def test_warp_kernel_enlarges_the_flow_of_the_coarser_level():
    torch.manual_seed(0)
    features = torch.randn(2, 5, 6, 10, device=DEVICE).to(memory_format=LAST)
    flow = 3 * torch.randn(2, 2, 3, 5, device=DEVICE)
    found, _, enlarged = kernel_warp(features, flow, INSIDE)
    torch.testing.assert_close(enlarged, resize(2 * flow, (6, 10)), atol=1e-5, rtol=0)
    torch.testing.assert_close(found, warp(features, enlarged), atol=1e-4, rtol=1e-4)
    found, visible, enlarged = kernel_warp(features, None, INSIDE)
    torch.testing.assert_close(found, features, atol=0, rtol=0)
    assert visible.all()
    assert not enlarged.any()


def test_refine_kernel_is_a_sum():
    torch.manual_seed(0)
    flow, correction = torch.randn(2, 2, 2, 5, 7, device=DEVICE).unbind(0)
    correction, bias = correction.half().to(memory_format=LAST), torch.randn(2, device=DEVICE)
    expected = flow + correction + bias[:, None, None]
    torch.testing.assert_close(refine(flow, correction, bias), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("projects", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_readout_kernel_equals_the_plain_readout(projects, adds):
    torch.manual_seed(0)
    batch, radius = 2, 2
    count = (2 * radius + 1) ** 2
    patches = 3 * torch.randn(count * batch, 4, 4, 5, 4, device=DEVICE)
    projection = torch.randn(count, count, 1, 1, device=DEVICE) if projects else None
    coarse = torch.randn(batch, 2, 6, 8, device=DEVICE) if adds else None
    bias = torch.randn(1, device=DEVICE)
    matched, entropy = readout(patches, bias, projection, coarse, batch)

    scores = add_up(patches).unflatten(0, (count, batch)).transpose(0, 1) + bias
    if projection is not None:
        scores = torch.nn.functional.conv2d(scores, projection)
    probability = displacement_probability(scores.unflatten(1, (5, 5)))
    expected = expected_displacement(probability) + (0 if coarse is None else coarse)
    torch.testing.assert_close(matched, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(entropy, normalized_entropy(probability), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("scene", "memory_limit", "many"),
    [
        ("no flow", None, False),
        pytest.param("leaves the frame", 1, False, marks=slow_interpreted),
        ("leaves the frame", 3 << 20, True),
    ],
)
def test_kernel_level_equals_the_plain_level(scene, memory_limit, many, monkeypatch):
    if many:  # programs take several displacements
        monkeypatch.setattr(first_layer, "_MANY", 0)
    torch.manual_seed(0)
    level = randomize_norms_and_biases(build(SMALL)).levels["4"].to(DEVICE)
    features1, features2 = torch.randn(2, 2, 32, *SIZE, device=DEVICE).unbind(0)
    features2 = features2 * (torch.rand(2, 1, *SIZE, device=DEVICE) > 0.03)
    image = torch.rand(2, 3, 4 * SIZE[0], 4 * SIZE[1], device=DEVICE)
    flow = None if scene == "no flow" else torch.full((2, 2, *SIZE), 2.3, device=DEVICE)
    fast = KernelLevel(level, torch.float32, memory_limit).to(DEVICE)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = level(features1, features2, image, flow)
        found = fast(features1, features2, image, flow)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_image_layer_sees_all_bits_of_an_image(dtype):
    torch.manual_seed(0)
    image = torch.randn(2, 3, 5, 9, device=DEVICE)
    weight, bias = torch.randn(6, 3, 3, 3, device=DEVICE).to(dtype), torch.randn(6, device=DEVICE)
    taps = weight.permute(1, 2, 3, 0).flatten(0, 2).contiguous()
    found = image_layer(image, taps, bias)
    expected = torch.nn.functional.conv2d(image, weight.float(), bias, padding=1).relu()
    rounding = 1e-5 if dtype == torch.float32 else 2**-10
    torch.testing.assert_close(found.float(), expected, atol=rounding, rtol=rounding)
    assert found.is_contiguous(memory_format=LAST)


def test_context_input_is_the_parts_side_by_side():
    torch.manual_seed(0)
    flow, entropy, image = (torch.randn(2, c, 3, 5, device=DEVICE) for c in (2, 1, 3))
    features = torch.randn(2, 32, 3, 5, device=DEVICE).half().to(memory_format=LAST)
    found = context_input(flow, entropy, features, image)
    lost = flow - flow.half()
    expected = torch.cat([part.half() for part in (flow, entropy, features, image, lost)], 1)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    assert found.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    ("feeding", "calibrated", "sharpness"),
    [
        (Feeding("replicate", 0, 32), True, False),
        (Feeding("white", 0, 32, scale=0.5), True, True),
        (Feeding(None, 0, 32), False, True),
    ],
)
def test_kernel_finish_equals_the_plain_one(feeding, calibrated, sharpness, monkeypatch):
    if DEVICE == "cpu":  # few programs
        monkeypatch.setattr(estimate, "PARTS", 2)
    torch.manual_seed(0)
    levels = [
        LevelFlow(
            *(3 * torch.randn(4, 2, *size, device=DEVICE) for _ in range(2)),
            torch.rand(4, 1, *size, device=DEVICE),
        )
        for size in [(4, 8), (8, 16)]
    ]
    size = (27, 61) if feeding.scale == 1 else (55, 120)
    images = torch.rand(2, 4, 3, *size, device=DEVICE)
    images[1, 1] = images[0, 1]  # still
    images[0, 2] = 0.3  # blank
    view = View(levels, *(feeding.fit(normalize(image)) for image in images))
    found = PassResult(view, feeding, size, upsample_flow)
    calibration = Calibration(0.3, -1.0, 0.4, -0.5, 0.2, -0.3, -0.6, -0.9) if calibrated else None
    expected = Finish(calibration, sharpness=sharpness)(found)
    result = KernelFinish(calibration, torch.device(DEVICE), sharpness=sharpness)(found)
    assert [bool(one.any()) for one in expected[:, :2]] == [True, False, False, True]
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def test_the_kernel_takes_the_weights_of_cues_in_their_order():
    places = [getattr(estimate, f"_{cue.upper()}").value for cue in CUES]
    assert places == list(range(1, 1 + len(CUES)))


@pytest.mark.parametrize("padding", ["replicate", "white"])
def test_normalized_frames_are_those_that_the_network_takes(padding):
    torch.manual_seed(0)
    images = torch.rand(2, 2, 3, 21, 37, device=DEVICE).unbind(0)
    feeding = Feeding(padding, 0, 32)
    expected = torch.cat([feeding.fit(normalize(image)) for image in images])
    found = normalized(images, (32, 64), white=padding == "white")
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    single = normalized(images[:1], (32, 64), white=padding == "white")
    torch.testing.assert_close(single, expected[:2], atol=0, rtol=0)


def test_halves_of_one_tensor_are_joined_without_a_copy():
    both = torch.rand(4, 3, 5, 7)
    first, second = both.chunk(2)
    assert join(first, second).data_ptr() == both.data_ptr()
    for pair in ((first, second), (second, first), (first, first), (first, second.clone())):
        torch.testing.assert_close(join(*pair), torch.cat(pair), atol=0, rtol=0)


def test_merge_input_is_the_maps_side_by_side():
    torch.manual_seed(0)
    first, second = (torch.randn(2, 24, 3, 5, device=DEVICE).to(memory_format=LAST) for _ in "ab")
    found = merge_input(first, second)
    torch.testing.assert_close(found, torch.cat([first.relu(), second], 1), atol=0, rtol=0)
    assert found.is_contiguous(memory_format=LAST)
