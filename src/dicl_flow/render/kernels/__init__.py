"""The passes over all pixels as Triton kernels, with the results of the plain ones.

Rendering and the training step run at the same time and share the memory's bandwidth, so each
kernel is one pass instead of many.
"""

from importlib.util import find_spec

import torch


def usable(device: torch.device) -> bool:
    """Whether the kernels run on this device."""
    return device.type == "cuda" and find_spec("triton") is not None
