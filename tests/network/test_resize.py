"""Bilinear resizing as matrix products is the same as torch's, and so is its gradient."""

from functools import partial

import pytest
import torch

from dicl_flow.ops import resize, resize_by_matrices, upsample_flow, upsample_pixels

SIZES = [
    ((4, 6), (256, 384)),
    ((5, 7), (13, 9)),
    ((9, 8), (4, 3)),
    ((3, 1), (6, 5)),
    ((4, 5), (1, 1)),
]


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("corners", [True, False])
def test_values_and_gradient_equal_those_of_torch(old, new, dtype, tolerance, corners):
    torch.manual_seed(0)
    expected = resize if corners else upsample_pixels
    values, weights = torch.randn(2, 2, *old, dtype=dtype), torch.randn(2, 2, *new, dtype=dtype)
    outcomes = []
    for function in (expected, partial(resize_by_matrices, corners=corners)):
        leaf = values.clone().requires_grad_()
        result = function(leaf, new)
        (result * weights).sum().backward()
        outcomes.append((result, leaf.grad))
    for found, expected in zip(*outcomes, strict=True):
        # torch rounds the sampling positions to the precision of the values; we do not
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10)


def test_precision_never_falls_below_float32():
    flow = torch.randn(1, 2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        result = resize_by_matrices(flow, (8, 8))
    assert torch.equal(result, resize_by_matrices(flow, (8, 8)))
    assert resize_by_matrices(flow.bfloat16(), (8, 8)).dtype == torch.float32


def test_weights_made_without_gradients_serve_with_them():
    flow = torch.randn(1, 2, 3, 11, requires_grad=True)
    with torch.inference_mode():
        resize_by_matrices(flow, (17, 19))
    resize_by_matrices(flow, (17, 19)).sum().backward()
    assert flow.grad.sum() == pytest.approx(2 * 17 * 19)


def test_flow_is_upsampled_alike_either_way():
    flow = torch.randn(1, 2, 4, 6, dtype=torch.float64)
    expected = upsample_flow(flow, (16, 12))
    torch.testing.assert_close(upsample_flow(flow, (16, 12), resize_by_matrices), expected)
