"""Accelerated modules compared with plain ones: on a CUDA device, or in Triton's interpreter."""

import copy
import importlib
import os
import sys

import pytest
import torch
from torch import nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
pytest.importorskip("triton", reason="Triton is not installed")

import dicl_flow.accelerated.kernels
from dicl_flow.accelerated.kernels import norm_relu as norm_module
from dicl_flow.accelerated.kernels import pair_layer
from dicl_flow.accelerated.kernels.layout import in_rows
from dicl_flow.accelerated.kernels.norm_relu import norm_relu
from dicl_flow.accelerated.kernels.pair_windows import pair_windows
from dicl_flow.accelerated.training.convolutions import AcceleratedConvBlock
from dicl_flow.accelerated.training.matching import (
    AcceleratedPairwiseMatcher,
    ScoreConv2d,
    accelerate,
)
from dicl_flow.config import LevelConfig, LossConfig, ModelConfig
from dicl_flow.errors import InputError
from dicl_flow.matching import PairwiseMatcher, build_matcher
from dicl_flow.models import build
from dicl_flow.nn import ConvBlock
from dicl_flow.training import pyramid_loss

pytestmark = pytest.mark.heavy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = 16 if DEVICE == "cuda" else 8  # of a whole network's images: the interpreter is slow
CHANNELS_LAST = torch.channels_last


@pytest.fixture(autouse=True)
def wide_tiles(monkeypatch):
    """Few programs: the interpreter takes as long for small tiles."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pair_layer, "_TALL", 8)
        monkeypatch.setattr(pair_layer, "_COLUMNS", 128)
        monkeypatch.setattr(pair_layer, "_FEW", 128)


@pytest.fixture(autouse=True)
def exact_convolutions():
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        torch.manual_seed(0)
        yield


def plain_norm_relu(norm, x):
    return torch.relu(norm(x))


def fused_norm_relu(norm, x):
    return norm_relu(x, norm.weight, norm.bias, *norm.buffers(), norm.momentum, norm.eps)


def random_norm(channels):
    norm = nn.BatchNorm2d(channels, device=DEVICE)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        nn.init.uniform_(tensor.data, -1, 2)
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


@pytest.mark.parametrize("shape", [(2, 32, 7, 9), (3, 20, 1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_layer_of_scores_equals_the_plain_convolution(shape, dtype):
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
    bound = 1e-6 if dtype == torch.float32 else 1e-3
    assert score.dtype == found.grad.dtype == dtype
    assert relative(score.float(), wanted) <= bound
    assert relative(found.grad.float(), expected.grad) <= bound
    for one, other in zip(layer.parameters(), plain.parameters(), strict=True):
        assert relative(one.grad, other.grad) <= bound


@pytest.mark.parametrize(
    "shape", [(2, 32, 7, 9), (1, 48, 5, 5), (2, 96, 3, 4), (3, 5, 1, 1), (1, 200, 9, 6)]
)
def test_norm_relu_equals_the_plain_modules(shape):
    norm, x, gradient = random_norm(shape[1]), random_map(*shape, offset=1), random_map(*shape)
    expected = outcome(plain_norm_relu, norm.double(), x.double(), gradient)
    found = outcome(fused_norm_relu, norm.float(), x, gradient)
    assert found[-1] == expected[-1] == 1  # batches seen
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


def test_many_tiles_for_few_programs(monkeypatch):
    """Several rounds for each program, the last one ragged."""
    monkeypatch.setattr(norm_module, "_PROGRAMS", 4)
    monkeypatch.setattr(norm_module, "_TILE", 128)
    norm, x, gradient = random_norm(24), random_map(3, 24, 7, 5), random_map(3, 24, 7, 5)
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


@pytest.mark.parametrize("norm", [True, False])
def test_without_batch_statistics_the_twin_is_the_plain_block(norm):
    plain = ConvBlock(3, 8, norm=norm).to(DEVICE)
    block = accelerate(copy.deepcopy(plain)).train()
    block.bn.eval()  # frozen statistics
    plain.bn.eval()
    x = random_map(2, 3, 4, 6)
    torch.testing.assert_close(block(x), plain(x))
    assert all(map(torch.equal, block.buffers(), plain.buffers()))


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
        (TINY, 2e-5),
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
