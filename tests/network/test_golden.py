"""The network is the authors': outputs for their code's weights, gradients for a second opinion."""

import numpy as np
import pytest
import torch
from straight_line import StraightLine

from dicl_flow.cli import main
from dicl_flow.config import ModelConfig
from dicl_flow.models import build, count_parameters
from dicl_flow.weights import load_model, read_weights
from dicl_flow.weights.legacy import import_legacy, rename

pytestmark = pytest.mark.heavy

STRIDES = (64, 32, 16, 8, 4)


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(import_legacy(checkpoint)).double()


def test_counts_of_the_published_network():
    model = build(ModelConfig())
    assert count_parameters(model) == 11_226_036
    assert len(model.state_dict()) == 522


def test_converted_weights_give_the_authors_ten_flows(
    checkpoint, tmp_path, golden_images, golden_outputs
):
    converted = tmp_path / "golden.safetensors"
    main_exit_code(["convert", str(checkpoint), "-o", str(converted), "--quiet"])
    model = load_model(read_weights(converted)).double()
    with torch.no_grad():
        flows = model(*golden_images)
    for stride, flow in zip(STRIDES, flows, strict=True):
        np.testing.assert_allclose(flow.refined[0], golden_outputs[f"flow_{stride}"], atol=1e-6)
        np.testing.assert_allclose(flow.matched[0], golden_outputs[f"raw_{stride}"], atol=1e-6)


# In training mode the bottleneck normalises over four values, which magnifies rounding.
# That takes maps of twice the size, and 4 GiB.
@pytest.mark.parametrize(
    ("training", "tolerance"), [(False, 1e-9), pytest.param(True, 1e-6, marks=pytest.mark.slow)]
)
def test_gradients_equal_a_straight_line_computation(
    model, golden_state, golden_images, training, tolerance
):
    """Every parameter's gradient, in float64, against code that shares nothing with ours."""
    crops = [slice(0, 128), slice(128, 256)] if training else [slice(0, 128)]
    width = 256 if training else 128
    image1, image2 = (
        torch.cat([image[..., rows, :width] for rows in crops]) for image in golden_images
    )
    generator = torch.Generator().manual_seed(0)
    model.train(training).zero_grad()
    flows = [flow for level in model(image1, image2) for flow in (level.matched, level.refined)]
    weights = [torch.randn(flow.shape, generator=generator).double() for flow in flows]
    sum((w * flow).sum() for w, flow in zip(weights, flows, strict=True)).backward()

    state = {
        key: tensor.double().requires_grad_() if tensor.is_floating_point() else tensor
        for key, tensor in golden_state.items()
    }
    expected = [flow for level in StraightLine(state, training)(image1, image2) for flow in level]
    sum((w * flow).sum() for w, flow in zip(weights, expected, strict=True)).backward()

    for flow, reference in zip(flows, expected, strict=True):
        torch.testing.assert_close(flow, reference, atol=tolerance, rtol=0)
    references = {rename(key): tensor.grad for key, tensor in state.items() if "running" not in key}
    checked = 0
    for key, parameter in model.named_parameters():
        scale = references[key].abs().max().clamp(min=1e-6)
        assert ((parameter.grad - references[key]).abs().max() / scale) < tolerance, key
        checked += 1
    assert checked == len(list(model.parameters())) > 200


def main_exit_code(arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 0
