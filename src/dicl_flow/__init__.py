"""Optical flow by displacement-invariant matching cost learning.

    import dicl_flow

    estimator = dicl_flow.load("weights.safetensors")
    result = estimator("frame1.png", "frame2.png")
    result.save("flow.flo")

Names are imported when they are first used, so that `import dicl_flow` costs little. It sets what
torch reads from the environment: import it before torch.
"""

from typing import TYPE_CHECKING

from ._version import __version__
from .environ import prepare_torch
from .lazy import on_first_use

if TYPE_CHECKING:
    from .adaptation.adapt import adapt
    from .config import LevelConfig, ModelConfig, Quality
    from .errors import InputError
    from .estimation.estimator import FlowEstimator, FlowSequence, load
    from .estimation.result import FlowResult, FlowTensors
    from .estimation.warping import interpolate, warp
    from .evaluation import calibrate, evaluate
    from .files import read_flow, read_image, set_max_size, write_flow
    from .models import build
    from .pictures.visualize import flow_to_rgb
    from .tracking.tracker import Tracker, track
    from .tracking.tracks import Reference, Tracks

__all__ = [
    "load",
    "FlowEstimator",
    "FlowResult",
    "FlowTensors",
    "FlowSequence",
    "build",
    "ModelConfig",
    "LevelConfig",
    "Quality",
    "read_flow",
    "write_flow",
    "read_image",
    "set_max_size",
    "flow_to_rgb",
    "warp",
    "interpolate",
    "track",
    "Tracker",
    "Tracks",
    "Reference",
    "evaluate",
    "calibrate",
    "adapt",
    "InputError",
    "__version__",
]

prepare_torch()

if not TYPE_CHECKING:
    _names = {
        "adaptation.adapt": "adapt",
        "config": "LevelConfig ModelConfig Quality",
        "errors": "InputError",
        "estimation.estimator": "FlowEstimator FlowSequence load",
        "estimation.result": "FlowResult FlowTensors",
        "estimation.warping": "interpolate warp",
        "evaluation": "calibrate evaluate",
        "files": "read_flow read_image set_max_size write_flow",
        "models": "build",
        "pictures.visualize": "flow_to_rgb",
        "tracking.tracker": "Tracker track",
        "tracking.tracks": "Reference Tracks",
    }
    __getattr__ = on_first_use(__name__, _names)


def __dir__() -> list[str]:
    return sorted(__all__)
