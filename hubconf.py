"""Entry points of `torch.hub`: see docs/how-to/hub.md."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent / "src"))

from dicl_flow import load as estimator

if TYPE_CHECKING:
    from torch.nn import Module

dependencies = ["torch", "numpy", "cv2", "safetensors"]


def network(weights: str | None = None) -> "Module":
    """Return the network alone, an `nn.Module` for normalised images in multiples of 128.

    `weights` is a packaged name or a .safetensors file; without it, the packaged default.
    """
    return estimator(weights, device="cpu", precision="fp32", backend="plain").model


__all__ = ["dependencies", "estimator", "network"]
