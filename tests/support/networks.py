"""Networks and weights that several tests need."""

from dataclasses import replace

import torch
from conftest import SMALL

from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build


def randomize_norms_and_biases(module):
    """Give batch norms statistics, and layers a bias, that change what they compute."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(0.5, 1.5)
        if getattr(part, "bias", None) is not None:
            part.bias.data.normal_(0, 0.3)
    return module.eval()


def explored_networks():
    """Two accelerated networks: with a projection that is not the identity, and without one."""
    return {"with": _explored(SMALL), "without": _explored(replace(SMALL, projection=False))}


def _explored(config):
    torch.manual_seed(1)
    model = build(config)
    for level in model.levels.values():
        if config.projection:
            level.projection.weight.data += 0.1 * torch.randn_like(level.projection.weight)
    return FlowEstimator(model.eval(), "cpu", "fp32", "fast")


class Evil:
    def __reduce__(self):
        return (print, ("executed",))
