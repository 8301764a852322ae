"""Entry points of `torch.hub`: see docs/how-to/hub.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from torch.nn import Module as _Module

from dicl_flow import load as estimator

dependencies = ["torch", "numpy", "cv2", "safetensors"]


def network(weights: str | None = None) -> _Module:
    """Return the network alone, an `nn.Module` for normalised images in multiples of 128.

    `weights` is a packaged name or a .safetensors file; without it, the packaged default.
    """
    return estimator(weights, device="cpu", precision="fp32", backend="plain").model


__all__ = ["dependencies", "estimator", "network"]
