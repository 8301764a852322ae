"""Networks and weights that several tests need."""

import torch


def randomize_norms(module):
    """Give every batch norm statistics that change its output."""
    for norm in module.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(0.5, 2)
            norm.weight.data.uniform_(0.5, 1.5)
            norm.bias.data.normal_(0, 0.3)
    return module.eval()


class Evil:
    def __reduce__(self):
        return (print, ("executed",))
