"""Without the private functions of torch and Triton, public ones compute the same."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from networks import randomize_norms_and_biases

from dicl_flow.accelerated import private, settings, winograd
from dicl_flow.accelerated.folded import folded_block
from dicl_flow.accelerated.settings import Processor
from dicl_flow.models.blocks import ConvBlock


@pytest.fixture
def without(monkeypatch):
    """As if torch and Triton had dropped all of them."""
    monkeypatch.setattr(private, "_find", lambda owner, name: None)


def test_a_processor_of_which_nothing_is_known_has_nothing(without, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert settings.processor.__wrapped__() == Processor()


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 3}, {"up": True}])
def test_layers_are_the_same_without_onednn_functions(without, monkeypatch, options):
    monkeypatch.setattr(settings, "processor", settings.processor.__wrapped__)
    torch.manual_seed(0)
    block, x = randomize_norms_and_biases(ConvBlock(6, 7, **options)), torch.randn(2, 6, 12, 8)
    layer = folded_block(block, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), block(x), atol=1e-4, rtol=0)
        less = torch.randn_like(block(x))
        if not options:
            expected = (block.bn(block.conv(x)) - less).relu()
            torch.testing.assert_close(layer(x, less), expected, atol=1e-4, rtol=0)
    assert layer._packed is None


def test_winograd_is_a_convolution_without_nnpack(without):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 6, 19, 23), torch.randn(5, 6, 3, 3), torch.randn(5)
    found = winograd.convolve(x, weight, bias, 2, relu=True)
    expected = F.conv2d(x, weight, bias, 1, 2, 2).relu()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_convolution_and_relu_without_cudnn(without):
    x, weight, bias = torch.randn(1, 4, 9, 9), torch.randn(5, 4, 3, 3), torch.randn(5)
    found = private.cudnn_convolve_relu(x, weight, bias, ([2, 2], [1, 1], [1, 1]))
    torch.testing.assert_close(found, F.conv2d(x, weight, bias, 2, 1).relu())


def test_kernels_are_compiled_one_by_one_without_the_mode_of_triton(without, monkeypatch):
    pytest.importorskip("triton")
    with ThreadPoolExecutor(1) as pool, private.compile_in(pool):
        pass  # what is compiled here does not use the pool
    private.make_launcher(object())
    for value, expected in (("1", True), ("0", False)):
        monkeypatch.setenv("TRITON_INTERPRET", value)
        assert private.is_interpreted() is expected


def test_all_of_them_exist_in_the_torch_and_triton_that_are_tested():
    """A new release that drops one is noticed here, not by slower estimates."""
    assert private._find(torch, "cudnn_convolution_relu")
    assert private._find(torch, "_nnpack_spatial_convolution")
    assert private._find(torch.cpu, "_is_amx_tile_supported")
    if torch.backends.mkldnn.is_available():
        assert private.has_onednn_convolutions()
        assert private._find(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    triton = pytest.importorskip("triton")
    assert private._find(triton, "AsyncCompileMode")
