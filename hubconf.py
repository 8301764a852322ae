"""Entry points of `torch.hub`: see docs/how-to/hub.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from dicl_flow import load as estimator
from dicl_flow.models import DiclFlow as _DiclFlow

dependencies = ["torch", "numpy", "cv2", "safetensors"]


def network(weights: str | None = None) -> _DiclFlow:
    """Return the network alone, an `nn.Module` for normalised images in multiples of 128.

    `weights` is a packaged name or a .safetensors file; without it, the packaged default.
    """
    from dicl_flow.weights import load_model, read_weights, resolve

    return load_model(read_weights(resolve(weights)))


__all__ = ["dependencies", "estimator", "network"]
