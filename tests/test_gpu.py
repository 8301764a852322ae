"""What only a CUDA device can show. Run there: python -m pytest tests/test_gpu.py."""

import pytest
import torch

from dicl_flow.config import MATCHERS, ModelConfig
from dicl_flow.estimator import FlowEstimator
from dicl_flow.models import build
from dicl_flow.weights import import_legacy, load_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
STRIDES = (64, 32, 16, 8, 4)


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(import_legacy(checkpoint)).cuda()


def largest_difference(model, images, outputs, dtype):
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        flows = model.to(dtype)(*(image.cuda().to(dtype) for image in images))
    differences = [
        (getattr(flow, kind)[0].double().cpu() - torch.from_numpy(outputs[f"{name}_{stride}"]))
        for stride, flow in zip(STRIDES, flows, strict=True)
        for kind, name in (("refined", "flow"), ("matched", "raw"))
    ]
    return max(difference.abs().max().item() for difference in differences)


def test_float64_equals_the_authors_network(model, golden_images, golden_outputs):
    assert largest_difference(model, golden_images, golden_outputs, torch.float64) <= 1e-6


def test_float32_without_tf32_stays_close(model, golden_images, golden_outputs):
    assert largest_difference(model, golden_images, golden_outputs, torch.float32) <= 5e-2


def test_estimator_gives_the_same_flow_on_both_devices(checkpoint, golden_images):
    images = [(image[0].float() + 1) / 2 for image in golden_images]
    flows = [
        FlowEstimator(load_model(import_legacy(checkpoint)), device, "fp32")(*images).flow
        for device in ("cpu", "cuda")
    ]
    assert abs(flows[0] - flows[1]).max() <= 5e-2


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_reduced_precision_runs_and_keeps_float32_flow(model, golden_images, precision):
    estimator = FlowEstimator(model.float(), "cuda", precision)
    flow, confidence = estimator.estimate(*((image + 1) / 2 for image in golden_images))
    assert flow.dtype == confidence.dtype == torch.float32
    assert flow.isfinite().all()


@pytest.mark.parametrize("matcher", MATCHERS)
def test_every_matcher_agrees_with_the_cpu(matcher, golden_images):
    torch.manual_seed(0)
    model = build(ModelConfig(matcher=matcher)).double().eval()
    images = [image[..., :128, :128] for image in golden_images]
    with torch.no_grad():
        on_cpu = model(*images)[-1]
        on_gpu = model.cuda()(*(image.cuda() for image in images))[-1]
    for a, b in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(a, b.cpu(), atol=1e-6, rtol=0)
