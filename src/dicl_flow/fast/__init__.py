"""The fast twin of the plain network, for inference."""

from .graphs import Graphs
from .memory import available_bytes, fixed_bytes, network_bytes
from .network import FastDiclFlow, is_supported
from .settings import cudnn_flags

__all__ = [
    "FastDiclFlow",
    "Graphs",
    "available_bytes",
    "cudnn_flags",
    "fixed_bytes",
    "is_supported",
    "network_bytes",
]
