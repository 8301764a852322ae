"""The accelerated version of the plain network for inference: backend "fast"."""

from . import processor
from .cores import limit_threads, usable_cores
from .folded_network import AcceleratedDiclFlow
from .kernel_network import KernelDiclFlow
from .memory import available_bytes, check_limit, fixed_bytes, network_bytes
from .recordings import Graphs
from .settings import (
    cudnn_flags,
    exact_float32,
    has_bf16,
    has_tf32,
    training_arithmetic,
    warn_if_emulated,
)
from .side_stream import SideStream
from .winograd import in_callers_thread

__all__ = [
    "AcceleratedDiclFlow",
    "Graphs",
    "KernelDiclFlow",
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
