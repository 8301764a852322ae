"""Kernels of training equal plain modules, on a GPU or in Triton's interpreter."""

import copy
import importlib
import os
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import slow_interpreted
from torch import nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
pytest.importorskip("triton", reason="Triton is not installed")

import dicl_flow.accelerated.kernels
from dicl_flow.accelerated import batch_norm as norm_module
from dicl_flow.accelerated import losses as flow_errors
from dicl_flow.accelerated import readout as readout_module
from dicl_flow.accelerated import score_layers as last_layer
from dicl_flow.accelerated import stem as stem_layer
from dicl_flow.accelerated.batch_norm import AcceleratedConvBlock, norm_relu
from dicl_flow.accelerated.first_layer import training as pair_layer
from dicl_flow.accelerated.first_layer.training import AcceleratedPairwiseMatcher, pair_windows
from dicl_flow.accelerated.kernels import in_rows
from dicl_flow.accelerated.merge import trainable_merge_input
from dicl_flow.accelerated.readout import trained_readout
from dicl_flow.accelerated.score_layers import ScoreConv2d, WideConv2d
from dicl_flow.accelerated.stem import ImageConv2d
from dicl_flow.accelerated.training import accelerate
from dicl_flow.config import LevelConfig, LossConfig, ModelConfig
from dicl_flow.data import FlowBatch
from dicl_flow.errors import InputError
from dicl_flow.models import LevelFlow, build
from dicl_flow.models.blocks import ConvBlock
from dicl_flow.models.matching import PairwiseMatcher, build_matcher
from dicl_flow.ops import displacement_probability, expected_displacement, normalized_entropy
from dicl_flow.training import pyramid_loss
from dicl_flow.training.loss import matching_loss

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("exact_convolutions")]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = 16 if DEVICE == "cuda" else 8  # of a whole network's images: the interpreter is slow
CHANNELS_LAST = torch.channels_last
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # numpy has no bfloat16


@pytest.fixture(autouse=True)
def wide_tiles(monkeypatch):
    """Few programs: the interpreter takes as long for small tiles."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pair_layer, "_TALL", 8)
        monkeypatch.setattr(pair_layer, "_COLUMNS", 128)
        monkeypatch.setattr(pair_layer, "_FEW", 128)


def plain_norm_relu(norm, x):
    return torch.relu(norm(x))


def fused_norm_relu(norm, x):
    return norm_relu(x, norm)


def random_norm(channels, *, frozen=False):
    norm = nn.BatchNorm2d(channels, device=DEVICE).train(not frozen)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.uniform_(tensor.data, -1, 2)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


def random_map(*shape, offset=0.0, dtype=torch.float32):
    x = torch.randn(shape, device=DEVICE) * 2 + offset
    return x.to(dtype).contiguous(memory_format=CHANNELS_LAST)


def outcome(function, norm, x, gradient):
    """All that a norm gives and leaves: output, gradients, running statistics; in float64."""
    norm, x = copy.deepcopy(norm), x.detach().requires_grad_()
    y = function(norm, x)
    y.backward(gradient.to(y.dtype))
    tensors = [y, x.grad, norm.weight.grad, norm.bias.grad, *norm.buffers()]
    return [tensor.detach().double() for tensor in tensors]


def relative(found, expected):
    return ((found - expected).norm() / expected.norm().clamp(min=1e-12)).item()


@pytest.mark.parametrize("shape", [(2, 32, 7, 9), (3, 20, 1, 5), (3, 16, 10, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_layer_of_scores_equals_the_plain_convolution(shape, dtype, monkeypatch):
    monkeypatch.setattr(last_layer, "_ENOUGH", 1)  # strips of more rows
    plain = nn.Conv2d(shape[1], 1, 3, padding=1, device=DEVICE)
    with torch.no_grad():
        plain.weight.copy_(plain.weight.to(dtype))
    layer = accelerate(nn.Sequential(copy.deepcopy(plain)))[0]
    assert type(layer) is ScoreConv2d
    x, gradient = random_map(*shape, dtype=dtype), random_map(shape[0], 1, *shape[2:], dtype=dtype)
    found, expected = x.clone().requires_grad_(), x.float().requires_grad_()
    score, wanted = layer(found), plain(expected)
    score.backward(gradient)
    wanted.backward(gradient.float())
    bound = 5e-6 if dtype == torch.float32 else 1e-3
    assert score.dtype == found.grad.dtype == dtype
    assert relative(score.float(), wanted) <= bound
    assert relative(found.grad.float(), expected.grad) <= bound
    for one, other in zip(layer.parameters(), plain.parameters(), strict=True):
        assert relative(one.grad, other.grad) <= bound


@pytest.mark.parametrize(("channels", "size"), [(32, (3, 5)), (20, (2, 131))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_layer_of_images_equals_the_plain_convolution(channels, size, dtype, monkeypatch):
    monkeypatch.setattr(stem_layer, "_PROGRAMS", 4)  # several tiles each
    monkeypatch.setattr(stem_layer, "_BLOCK", 64)
    plain = nn.Conv2d(3, channels, 3, padding=1, bias=False, device=DEVICE)
    with torch.no_grad():
        plain.weight.copy_(plain.weight.to(dtype))
    layer = accelerate(nn.Sequential(copy.deepcopy(plain)))[0]
    assert type(layer) is ImageConv2d
    image, gradient = random_map(2, 3, *size, dtype=dtype), random_map(2, channels, *size)
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        found = layer(image.float().contiguous())
    expected = plain(image.float())
    found.backward(gradient.to(dtype))
    expected.backward(gradient.to(dtype).float())
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=CHANNELS_LAST)
    exact = dtype == torch.float32
    assert relative(found.float(), expected) <= (5e-6 if exact else 1e-3)
    # in half precision, tensor cores cut bits off their sums
    assert relative(layer.weight.grad, plain.weight.grad) <= (5e-6 if exact else 1e-4)


def test_a_gradient_of_images_is_that_of_the_plain_convolution():
    plain = nn.Conv2d(3, 8, 3, padding=1, bias=False, device=DEVICE)
    layer, gradients = accelerate(nn.Sequential(copy.deepcopy(plain)))[0], []
    image = random_map(1, 3, 4, 5)
    for net in (plain, layer):
        leaf = image.clone().requires_grad_()
        net(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    assert relative(*gradients) <= 1e-5


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, ImageConv2d),
        ({"stride": 2}, nn.Conv2d),
        ({"bias": True}, nn.Conv2d),
        ({"in_channels": 4}, nn.Conv2d),
        ({"out_channels": 96}, nn.Conv2d),
        ({"out_channels": 1}, WideConv2d),  # without a bias
        ({"out_channels": 1, "bias": True}, ScoreConv2d),
        ({"out_channels": 1, "bias": True, "padding": 0}, WideConv2d),
        ({"out_channels": 1, "bias": True, "in_channels": 96}, WideConv2d),
    ],
)
def test_kernels_take_only_the_layers_that_they_compute(change, kind):
    usual = {"in_channels": 3, "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": False}
    assert type(accelerate(nn.Conv2d(**{**usual, **change}))) is kind


@pytest.mark.parametrize(
    "shape", [(2, 32, 7, 9), (1, 48, 5, 5), (2, 96, 3, 4), (3, 5, 1, 1), (1, 200, 9, 6)]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_norm_relu_equals_the_plain_modules(shape, frozen):
    norm = random_norm(shape[1], frozen=frozen)
    x, gradient = random_map(*shape, offset=1), random_map(*shape)
    expected = outcome(plain_norm_relu, norm.double(), x.double(), gradient)
    found = outcome(fused_norm_relu, norm.float(), x, gradient)
    assert found[-1] == expected[-1] == (not frozen)  # batches seen
    assert max(map(relative, found, expected)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norm_relu_in_half_precision_only_rounds(dtype):
    norm = random_norm(32)
    x, gradient = (random_map(2, 32, 8, 8, dtype=dtype) for _ in range(2))
    expected = outcome(plain_norm_relu, copy.deepcopy(norm).double(), x.double(), gradient.double())
    found = outcome(fused_norm_relu, norm, x, gradient)
    rounding = torch.finfo(dtype).eps
    assert max(map(relative, found[:2], expected[:2])) < rounding  # half an eps for each element
    assert max(map(relative, found[2:], expected[2:])) < 1e-5  # sums and statistics are float32


@pytest.mark.parametrize("frozen", [False, True])
def test_many_tiles_for_few_programs(frozen, monkeypatch):
    """Several rounds for each program, the last one ragged."""
    monkeypatch.setattr(norm_module, "_PROGRAMS", 4)
    monkeypatch.setattr(norm_module, "_TILE", 128)
    norm, x = random_norm(24, frozen=frozen), random_map(3, 24, 7, 5)
    gradient = random_map(3, 24, 7, 5)
    expected = outcome(plain_norm_relu, copy.deepcopy(norm).double(), x.double(), gradient)
    assert max(map(relative, outcome(fused_norm_relu, norm, x, gradient), expected)) < 1e-5


def test_statistics_survive_a_large_mean():
    norm, x = random_norm(16), random_map(4, 16, 8, 8, offset=5000)
    expected = outcome(plain_norm_relu, copy.deepcopy(norm).double(), x.double(), x)
    assert relative(outcome(fused_norm_relu, norm, x, x)[5], expected[5]) < 1e-4


def test_norm_relu_takes_a_slice_of_a_concatenated_gradient():
    norm, x, wide = random_norm(16), random_map(2, 16, 4, 4), random_map(2, 40, 4, 4)
    piece = wide[:, 8:24]
    assert in_rows(piece)[0] is piece
    assert in_rows(piece.contiguous())[0].is_contiguous(memory_format=CHANNELS_LAST)
    found, expected = (outcome(fused_norm_relu, norm, x, g) for g in (piece, piece.clone()))
    assert all(map(torch.equal, found, expected))


def test_norm_relu_lets_nan_through():
    x = random_map(1, 8, 2, 2)
    x[0, 3, 0, 0] = torch.nan
    y = fused_norm_relu(random_norm(8), x)
    assert y[0, 3].isnan().all()
    assert y[0, :3].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_maps_equal_the_plain_ones_bit_by_bit(dtype):
    """A ReLU at zero and of NaN included; the gradient is a slice of a wider one."""
    maps = [random_map(2, 20, 3, 7, dtype=dtype) for _ in "12"]
    maps[0][0, :2, 0, 0] = maps[0].new_tensor([0.0, torch.nan])
    gradient = random_map(2, 50, 3, 7, dtype=dtype)[:, :40]
    found = []
    for merge in (trainable_merge_input, lambda one, two: torch.cat([one.relu(), two], 1)):
        leaves = [one.clone().requires_grad_() for one in maps]
        merged = merge(*leaves)
        merged.backward(gradient)
        found.append([merged.detach(), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*found, strict=True):
        assert one.is_contiguous(memory_format=CHANNELS_LAST)
        assert torch.equal(one.nan_to_num(99), other.nan_to_num(99))


def plain_readout(scores, weight):
    if weight is not None:
        scores = F.conv2d(scores.flatten(1, 2), weight).unflatten(1, scores.shape[1:3])
    probability = displacement_probability(scores)
    return scores, expected_displacement(probability), normalized_entropy(probability)


@pytest.mark.parametrize("projects", [True, False])
@pytest.mark.parametrize(("side", "dtype"), [(3, torch.float32), (7, HALF)])
def test_the_readout_equals_the_plain_one(side, dtype, projects, monkeypatch):
    monkeypatch.setattr(readout_module, "_PROGRAMS", 1)  # several tiles for a program
    scores = 2 * random_map(2, side**2, 5, 9, dtype=dtype)
    weight = random_map(side**2, side**2, 1, 1, dtype=dtype) / side if projects else None
    found = []
    for function, exact in ((trained_readout, False), (plain_readout, True)):
        given = [x.double() if exact else x.clone() for x in (scores, weight) if x is not None]
        leaves = [x.requires_grad_() for x in given]
        read = function(leaves[0].unflatten(1, (side, side)), leaves[1] if projects else None)
        ramps = [torch.linspace(-1, 2, x.numel(), device=DEVICE).reshape(x.shape) for x in read]
        sum((a * b).sum() for a, b in zip(read, ramps, strict=True)).backward()
        found.append([x.detach().double() for x in (*read, *(leaf.grad for leaf in leaves))])
    assert max(map(relative, *found)) < (
        1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize(("side", "dtype"), [(3, torch.float32), (7, HALF)])
def test_the_accelerated_matching_loss_equals_the_plain_one(side, dtype):
    """With motion at and beyond the largest displacement, and invalid pixels."""
    scores = 2 * random_map(2, side**2, 5, 9, dtype=dtype)
    start = random_map(2, 2, 5, 9).round() / 4
    truth = (16 * random_map(2, 2, 20, 36)).round() / 4
    valid = truth[:, 0] < 8
    found = []
    for exact in (False, True):
        leaf = (scores.double() if exact else scores.clone()).requires_grad_()
        maps = [x.double() if exact else x for x in (start, truth)]
        known = {"scores": leaf.unflatten(1, (side, side)), "start": maps[0]}
        level, batch = LevelFlow(*maps, start, **known), FlowBatch(*maps, maps[1], valid)
        loss = matching_loss([level], batch, (2.0,), torch.clone, accelerated=not exact)
        loss.backward()
        found.append([loss.detach().double(), leaf.grad.double()])
    assert max(map(relative, *found)) < (1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps)


LOSSES = [(((1, 1), (3, 7)), True), (((2, 1), (1, 4)), False)]
if DEVICE == "cuda":
    LOSSES += [(((5, 8), (10, 16), (20, 32), (80, 128)), False), (((7, 9), (101, 77)), True)]


@pytest.mark.parametrize(("sizes", "started"), LOSSES)
def test_the_accelerated_loss_equals_the_plain_one(sizes, started, monkeypatch):
    """With truth at, within and out of reach, invalid pixels, and one without an error."""
    full = (320, 512) if sizes[-1][0] > 5 else (13, 10)
    if full == (13, 10):
        monkeypatch.setattr(flow_errors, "_TILE", 64)  # several programs for a row
    truth, start = ((32 * torch.randn(2, 2, *full, device=DEVICE)).round() / 8 for _ in "12")
    valid = torch.rand(2, *full, device=DEVICE) < 0.8
    flows = [torch.randn(2, 2, *size, device=DEVICE) for size in sizes]
    for first in (truth, *flows):
        first[:, :, 0, 0] = 0
    config = LossConfig((0.5, 1.0, 1.5, 2.0)[: len(sizes)], (), exponent=0.4 if started else 1.0)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [flow.to(dtype, copy=True).requires_grad_() for flow in flows]
        levels = [LevelFlow(leaf, leaf, leaf[:, :1]) for leaf in leaves]
        known = (truth.to(dtype), valid, (5, 7, 9, 11), config, None)
        initial = start.to(dtype) if started else None
        loss = pyramid_loss(levels, *known, initial, accelerated=dtype == torch.float32)
        loss.backward()
        found.append([loss.detach().double(), *(leaf.grad.double() for leaf in leaves)])
    assert max(map(relative, *found)) < 3e-6


class Keep(nn.Module):
    """A net that keeps what it is shown."""

    def forward(self, pairs):
        self.pairs = pairs
        return pairs[:, :1]


def features_with_holes(*shape, dtype=torch.float32):
    holes = torch.rand(shape[0], 1, *shape[2:], device=DEVICE) < 0.3
    return random_map(*shape).masked_fill(holes, 0).to(dtype)


@pytest.mark.parametrize(
    ("shape", "radius"),
    [((2, 32, 7, 9), 2), ((1, 5, 2, 3), 3), ((2, 48, 4, 6), 1), ((1, 16, 1, 1), 2)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pair_windows_equal_the_plain_matcher(shape, radius, dtype):
    features = [random_map(*shape, dtype=dtype), features_with_holes(*shape, dtype=dtype)]
    features[0][:, :, 0, 0] = 0  # a hole in frame 1 hides nothing
    pairs, gradients = [], []
    for kind in (PairwiseMatcher, AcceleratedPairwiseMatcher):
        matcher = kind(Keep(), radius)
        leaves = [f.clone().requires_grad_() for f in features]
        matcher(*leaves)
        pairs.append(matcher.net.pairs)
        weights = torch.linspace(-1, 1, pairs[-1].numel(), device=DEVICE).reshape(pairs[-1].shape)
        (pairs[-1] * weights).sum().backward()
        gradients.append([leaf.grad.double() for leaf in leaves])
    assert torch.equal(*pairs)
    assert pairs[1].is_contiguous(memory_format=CHANNELS_LAST)
    # the plain sum over displacements is rounded to half precision in its own way
    tolerance = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert max(map(relative, *reversed(gradients))) < tolerance


def test_fused_block_keeps_the_contract_of_the_plain_one():
    plain = ConvBlock(3, 8, up=True).to(DEVICE)
    block = accelerate(copy.deepcopy(plain))
    assert type(block) is AcceleratedConvBlock
    assert block.state_dict().keys() == plain.state_dict().keys()
    x = random_map(2, 3, 4, 6)
    torch.testing.assert_close(block(x), plain(x))
    assert block.bn.num_batches_tracked == 1


def test_a_block_without_norm_is_the_plain_one():
    plain = ConvBlock(3, 8, norm=False).to(DEVICE)
    block, x = accelerate(copy.deepcopy(plain)), random_map(2, 3, 4, 6)
    torch.testing.assert_close(block(x), plain(x))


TINY = ModelConfig(levels=(LevelConfig(4, 1, ((8, 1),)), LevelConfig(2, 1, ((8, 2),))))


def training_step(model, images):
    """Flows, loss, gradients and buffers after one step, each as one float64 tensor."""
    flows = model(*images)
    truth = torch.full_like(images[0][:, :2], 2.0)
    weights = LossConfig(refined=(0.5, 1.0)[: len(flows)], matched=(0.4, 0.8)[: len(flows)])
    loss = pyramid_loss(flows, truth, truth[:, 0] > 0, model.config.reach, weights)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    groups = [[flow.refined for flow in flows], [loss], gradients, model.buffers()]
    return [torch.cat([tensor.flatten().double() for tensor in group]) for group in groups]


def decided(model):
    """Put every channel well to one side of its ReLU: no rounding tips one over."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            side = torch.randint(2, module.bias.shape, device=DEVICE)
            module.bias.data = 12.0 * side - 6
    return model


LONE = ModelConfig(matcher="mlp", context=False, levels=(LevelConfig(4, 1),))


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        pytest.param(TINY, 2e-5, marks=slow_interpreted),
        (LONE.with_host("pwcnet"), 2e-5),
        (LONE.with_host("vcn"), 1e-2),  # rounding tips ReLUs behind its sums over
    ],
    ids=["dicl", "pwcnet", "vcn"],
)
def test_whole_network_trains_as_the_plain_one(config, tolerance):
    plain = decided(build(config).to(DEVICE).train())
    fused = accelerate(copy.deepcopy(plain))
    assert fused.state_dict().keys() == plain.state_dict().keys()
    images = [torch.randn(2, 3, SIDE, SIDE, device=DEVICE) for _ in range(2)]
    expected = training_step(plain.double(), [image.double() for image in images])
    assert max(map(relative, training_step(fused, images), expected)) < tolerance


def test_the_same_step_twice_gives_the_same_bits():
    matcher = accelerate(build_matcher("mlp", 4, 1)).to(DEVICE)
    features = [random_map(1, 4, 4, 6, dtype=torch.float32) for _ in range(2)]
    first, second = copy.deepcopy(matcher), copy.deepcopy(matcher)
    for twin in (first, second):
        twin(*features).square().sum().backward()
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def test_the_matcher_of_a_frozen_norm_is_the_plain_one():
    plain = build_matcher("mlp", 4, 1).to(DEVICE).eval()
    twin = accelerate(copy.deepcopy(plain))
    features = [random_map(1, 4, 2, 2) for _ in range(2)]
    with torch.no_grad():
        torch.testing.assert_close(twin(*features), plain(*features))


def test_what_the_kernels_cannot_read_is_refused(monkeypatch):
    channels_first = torch.randn(2, 4, 3, 3, device=DEVICE)
    norm = random_norm(4)
    with pytest.raises(InputError, match="channels_last"):
        fused_norm_relu(norm, channels_first)
    last = channels_first.contiguous(memory_format=CHANNELS_LAST)
    with pytest.raises(InputError, match=r"got torch\.float64"):
        fused_norm_relu(norm, last.double())
    with pytest.raises(InputError, match="more than one pixel"):
        fused_norm_relu(norm, last[:1, :, :1, :1])
    with pytest.raises(InputError, match="one shape and precision"):
        pair_windows(last, last.half(), 1)
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(InputError, match=r"CUDA devices, got a tensor on cpu"):
        pair_windows(last.cpu(), last.cpu(), 1)


def test_without_triton_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(InputError, match=r"need Triton.*or use the plain backend"):
        importlib.reload(dicl_flow.accelerated.kernels)
