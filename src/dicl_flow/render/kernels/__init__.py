"""The passes over all pixels as Triton kernels, with the results of the plain ones.

Rendering runs beside the training step and competes with it for memory: one pass instead of many.
"""

from importlib.util import find_spec

import torch


def usable(device: torch.device) -> bool:
    """Whether the kernels run on this device."""
    return device.type == "cuda" and find_spec("triton") is not None
