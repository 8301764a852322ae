"""The same computation, faster: by layer, and for each layer by device. See README.md here.

`cpu`, `cuda` (backend "fast") and `training` (backend "fused") put the layers together. Files with
kernels import Triton; what is imported here does not.
"""

from . import processor
from .cpu import AcceleratedDiclFlow
from .memory import available_bytes, check_limit, fixed_bytes, network_bytes
from .processor import limit_threads, usable_cores
from .recording import Graphs, SideStream
from .settings import (
    cudnn_flags,
    exact_float32,
    has_bf16,
    has_tf32,
    training_arithmetic,
    warn_if_emulated,
)
from .winograd import in_callers_thread

__all__ = [
    "AcceleratedDiclFlow",
    "Graphs",
    "SideStream",
    "available_bytes",
    "check_limit",
    "cudnn_flags",
    "exact_float32",
    "fixed_bytes",
    "has_bf16",
    "has_tf32",
    "in_callers_thread",
    "limit_threads",
    "network_bytes",
    "processor",
    "training_arithmetic",
    "usable_cores",
    "warn_if_emulated",
]
