"""Networks and weights that several tests need."""

from dataclasses import replace

import torch
from conftest import SMALL

from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build


def randomize_norms(module):
    """Give every batch norm statistics that change its output."""
    for norm in module.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(0.5, 2)
            norm.weight.data.uniform_(0.5, 1.5)
            norm.bias.data.normal_(0, 0.3)
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
