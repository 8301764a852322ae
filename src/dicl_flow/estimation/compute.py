"""Where and how to compute: device, backend and precision, as asked for or as fits the machine."""

from importlib.util import find_spec

import torch

from ..accelerated.inference import is_supported
from ..config import ModelConfig
from ..errors import InputError, unknown_name

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "cpu", "cuda", "mps")
BACKENDS = ("auto", "fast", "plain")


def choose_device(name: str) -> torch.device:
    """Turn a device name into a device that is there, or say what is wrong."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind, _, index = name.partition(":")
    if kind not in available or (index and not index.isdecimal()):
        raise unknown_name("device", name, DEVICES)
    if not available[kind]:
        raise InputError(f"no {kind} device on this machine; use `device='cpu'`")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(f"no device {name}: this machine has {torch.cuda.device_count()}")
    return torch.device(name)


def choose_backend(name: str, config: ModelConfig, device: torch.device) -> str:
    """Resolve "auto" and refuse unknown names."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if name == "auto":
        kernels = device.type == "cuda" and find_spec("triton") is not None
        there = is_supported(config) and (kernels or device.type == "cpu")
        return "fast" if there else "plain"
    return name


def choose_precision(name: str, device: torch.device, backend: str) -> str:
    """Resolve "auto" and refuse unknown names."""
    if name not in ("auto", *PRECISIONS):
        raise unknown_name("precision", name, ["auto", *PRECISIONS])
    if name != "auto":
        return name
    if backend == "fast" and device.type == "cuda":
        return "fp16"
    if backend == "fast" and device.type == "cpu" and torch.cpu._is_amx_tile_supported():
        return "bf16"
    return "fp32"
