"""Weights: safetensors files that contain their config; packaged ones are known by name."""

from .legacy import import_legacy
from .store import (
    Weights,
    check_keys,
    encode_weights,
    halve,
    in_parts,
    leave_out,
    load_model,
    packaged_names,
    read_weights,
    resolve,
)

__all__ = [
    "Weights",
    "check_keys",
    "encode_weights",
    "halve",
    "import_legacy",
    "in_parts",
    "leave_out",
    "load_model",
    "packaged_names",
    "read_weights",
    "resolve",
]
