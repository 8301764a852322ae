"""Winograd's convolutions equal torch's, on any processor."""

import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL
from networks import randomize_norms_and_biases

from dicl_flow.accelerated import settings, winograd
from dicl_flow.accelerated.cpu import AcceleratedDiclFlow, FactoredMatcher
from dicl_flow.accelerated.folded import folded_block
from dicl_flow.accelerated.settings import Processor, dtype_of_most, has_winograd
from dicl_flow.accelerated.winograd import convolve
from dicl_flow.models import build
from dicl_flow.models.blocks import ConvBlock
from dicl_flow.models.matching import build_matcher

needs_nnpack = pytest.mark.skipif(
    not torch._nnpack_available(), reason="torch has no NNPACK for this processor"
)
LAST = torch.channels_last


@pytest.fixture
def arm(monkeypatch):
    """Pretend that NNPACK is the fastest here, for maps of any size."""
    monkeypatch.setattr(settings, "processor", lambda: Processor(onednn=True, fp16=True, acl=True))
    monkeypatch.setattr(winograd, "_LEAST_PIXELS", 1)
    monkeypatch.setattr(winograd, "_LEAST_CHANNELS", 1)


@needs_nnpack
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("at_once", [1, 1 << 24])
@pytest.mark.parametrize(("dilation", "size"), [(1, (19, 23)), (2, (16, 24)), (5, (13, 21))])
def test_it_is_a_convolution(monkeypatch, dilation, size, at_once, layout):
    """In strips and whole; with sides that the dilation does not divide."""
    monkeypatch.setattr(winograd, "_AT_ONCE", at_once)
    torch.manual_seed(0)
    x, weight = torch.randn(2, 6, *size).contiguous(memory_format=layout), torch.randn(5, 6, 3, 3)
    bias = torch.randn(5)
    expected = F.conv2d(x.double(), weight.double(), bias.double(), 1, dilation, dilation).relu()
    found = convolve(x, weight, bias, dilation, relu=True)
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=0)


@needs_nnpack
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 3}, {"up": True}])
def test_layers_are_the_same_with_it(arm, options):
    torch.manual_seed(0)
    block, x = randomize_norms_and_biases(ConvBlock(6, 7, **options)), torch.randn(2, 6, 12, 8)
    layer = folded_block(block, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), block(x), atol=1e-4, rtol=0)
    assert (layer._planes is None) == ("stride" in options)


@pytest.mark.parametrize("acl", [True, False])
def test_the_matching_net_is_exact_on_cells_and_around_corners(monkeypatch, acl):
    monkeypatch.setattr(settings, "processor", lambda: Processor(acl=acl))
    torch.manual_seed(0)
    matcher = randomize_norms_and_biases(build_matcher("dicl", 6, 2)).double()
    maps = torch.randn(2, 2, 6, 8, 10).double()
    with torch.no_grad():
        found = FactoredMatcher(matcher, torch.float64)(*maps)
        torch.testing.assert_close(found, matcher(*maps), atol=1e-10, rtol=0)


@needs_nnpack
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float16, 0.2)])
def test_the_network_is_the_plain_one(arm, dtype, tolerance):
    torch.manual_seed(1)
    model = randomize_norms_and_biases(build(SMALL))
    images = 2 * torch.rand(2, 1, 3, 32, 48) - 1
    with torch.no_grad():
        expected = model(*images)[-1].refined
        found = AcceleratedDiclFlow(model, dtype)(*images)[-1].refined
    difference = (found - expected).abs().max()
    assert 0 < difference < tolerance


def test_with_it_float16_is_for_strided_layers_only(arm):
    """Convolutions of other devices and other precisions do not change."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert dtype_of_most(torch.float16, cpu) == torch.float32
    assert dtype_of_most(torch.float16, cuda) == torch.float16
    assert dtype_of_most(torch.bfloat16, cpu) == torch.bfloat16
    assert not has_winograd(cuda)
    needed = [
        settings.network_bytes(dtype, cpu, fast=True) for dtype in (torch.float16, torch.float32)
    ]
    assert needed[0] == needed[1]
    model = AcceleratedDiclFlow(build(SMALL), torch.float16)
    halves = {name for name, value in model.named_buffers() if value.dtype == torch.float16}
    assert halves == {
        f"levels.{stride}.matcher.down.{kind}" for stride in (8, 4) for kind in ("weight", "bias")
    }
