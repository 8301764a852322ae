"""The factored first layer in training equals the convolution of all pairs."""

import copy
import os

import pytest
import torch
from conftest import slow_interpreted
from torch import nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
pytest.importorskip("triton", reason="Triton is not installed")

from dicl_flow.accelerated.first_layer import training as module
from dicl_flow.accelerated.first_layer.training import pair_layer, pair_norm_relu
from dicl_flow.models.matching import PairwiseMatcher

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("exact_convolutions")]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAST = torch.channels_last
# (B, C, H, W), radius, channels; all is visible around a tile of 4x4 pixels of the larger map
LAYERS = [((2, 6, 3, 2), 1, 40)]
NORMED = [
    pytest.param((1, 8, 10, 10), 1, 40, marks=slow_interpreted),
    pytest.param((1, 4, 2, 1), 3, 16, marks=slow_interpreted),
    ((1, 70, 2, 1), 1, 16),
]
if DEVICE == "cuda":  # the interpreter is slow
    NORMED += [((2, 16, 1, 3), 2, 16), ((2, 32, 37, 51), 3, 96), ((3, 48, 64, 33), 2, 64), *LAYERS]
    NORMED += [((2, 196, 2, 4), 4, 96), ((2, 128, 16, 32), 4, 96)]  # PWC-Net's, and VCN's
    LAYERS = NORMED


@pytest.fixture(autouse=True)
def few_tiles(monkeypatch):
    """Large ones where they can be: the interpreter takes as long for small ones."""
    if DEVICE == "cpu":
        monkeypatch.setattr(module, "_WIDE", 4)
        monkeypatch.setattr(module, "_COLUMNS", 64)
        monkeypatch.setattr(module, "_FEW", 64)
        monkeypatch.setattr(module, "_GROUPS", 4)


def make(shape, radius, channels):
    """Two maps, the second with holes in one half; a weight; a gradient of the layer."""
    batch, depth, height, width = shape
    features = [torch.randn(shape, device=DEVICE).contiguous(memory_format=LAST) for _ in "12"]
    features[0][..., 0, 0] = 0  # a hole in frame 1 hides nothing
    holes = torch.rand(batch, 1, height, width, device=DEVICE) < 0.3
    holes[..., min(width // 2, 1 + width // 16) :] = False
    features[1].masked_fill_(holes, 0)
    weight = torch.randn(channels, 2 * depth, 3, 3, device=DEVICE)
    count = (2 * radius + 1) ** 2 * batch
    gradient = torch.randn(count, channels + 3, height, width, device=DEVICE)
    return [*features, weight], gradient.contiguous(memory_format=LAST)[:, 3:]  # as of a `cat`


def convolved_pairs(features1, features2, weight, radius):
    pairs = PairwiseMatcher(torch.nn.Identity(), radius).pairs(features1, features2)
    found = torch.nn.functional.conv2d(pairs, weight, padding=1)
    return found.unflatten(0, (len(features1), -1)).transpose(0, 1).flatten(0, 1)


class Normed(nn.Module):
    """Pairs convolved, normalised and after the ReLU: in one function, or as plain modules."""

    def __init__(self, channels, fused, frozen):
        super().__init__()
        self.bn, self.fused = nn.BatchNorm2d(channels, device=DEVICE).train(not frozen), fused
        for tensor in (*self.parameters(), self.bn.running_mean):
            nn.init.uniform_(tensor.data, -1, 2)
        nn.init.uniform_(self.bn.running_var, 0.5, 2)

    def forward(self, features1, features2, weight, radius):
        given, norm = (features1, features2, weight, radius), self.bn
        if not self.fused:
            return torch.relu(norm(convolved_pairs(*given)))
        return pair_norm_relu(*given, norm)


def outcome(function, inputs, gradient, radius):
    """The result, the gradients of both maps and the weight, all of a norm; in float64."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    result = function(*leaves, radius)
    result.backward(gradient.to(result.dtype))
    norm = []
    if isinstance(function, Normed):
        norm = [*(each.grad for each in function.parameters()), *function.buffers()]
    assert [leaf.grad.dtype for leaf in leaves] == [leaf.dtype for leaf in leaves]
    return [each.detach().double() for each in (result, *(leaf.grad for leaf in leaves), *norm)]


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def twins(channels, inputs, gradient, radius, least, *, frozen=False):
    """A fused and a plain layer, and the gradient where no rounding tips a ReLU over."""
    fused = Normed(channels, fused=True, frozen=frozen)
    plain = copy.deepcopy(fused).double()
    plain.fused = False
    with torch.no_grad():
        before = copy.deepcopy(plain.bn)(convolved_pairs(*(x.double() for x in inputs), radius))
    return fused, plain, gradient * (before.abs() > least)


@pytest.mark.parametrize(("shape", "radius", "channels"), LAYERS)
def test_factored_layer_is_the_convolution_of_the_pairs(shape, radius, channels):
    inputs, gradient = make(shape, radius, channels)
    expected = outcome(convolved_pairs, [x.double() for x in inputs], gradient, radius)
    found = outcome(pair_layer, inputs, gradient, radius)
    assert max(map(relative, found, expected)) < 1e-5


@pytest.mark.parametrize(("shape", "radius", "channels"), NORMED)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_layer_with_norm_and_relu_equals_the_plain_modules(shape, radius, channels, frozen):
    inputs, gradient = make(shape, radius, channels)
    fused, plain, gradient = twins(channels, inputs, gradient, radius, 1e-4, frozen=frozen)
    expected = outcome(plain, [x.double() for x in inputs], gradient, radius)
    found = outcome(fused, inputs, gradient, radius)
    assert found[-1] == expected[-1] == (not frozen)  # batches seen
    assert max(map(relative, found, expected)) < 1e-5


def test_no_pair_is_kept_for_the_backward_pass():
    inputs, _ = make((1, 4, 2, 3), 1, 16)
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, id)
    with hooks:
        pair_layer(*(x.requires_grad_() for x in inputs), 1)
    visible = 2 * 4 * 5 + 2 * 2 * 3  # taps, and where some are missing
    assert sum(kept) == sum(x.numel() for x in inputs) + visible


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("shape", "radius", "channels"), NORMED)
def test_autocast_only_rounds_and_repeats_its_bits(shape, radius, channels, normed):
    inputs, gradient = make(shape, radius, channels)
    inputs, gradient = [x.bfloat16().float() for x in inputs], gradient.bfloat16()
    function, plain = pair_layer, convolved_pairs
    if normed:
        function, plain, gradient = twins(channels, inputs, gradient, radius, 0.05)
    exact = outcome(plain, [x.double() for x in inputs], gradient, radius)
    with torch.autocast(DEVICE, torch.bfloat16):
        found, again = (outcome(copy.deepcopy(function), inputs, gradient, radius) for _ in "12")
    assert all(map(torch.equal, found, again))
    bound = torch.finfo(torch.bfloat16).eps * (4 if normed else 1)  # sums behind the norm cancel
    assert max(map(relative, found, exact)) < bound
