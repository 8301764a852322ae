"""Settings of torch, and what it knows of the machine."""

import warnings
from contextlib import AbstractContextManager

import torch

from ...errors import SlowWarning
from . import processor


def cudnn_flags(**changes: bool) -> AbstractContextManager[None]:
    """Change some settings of cuDNN in a `with` block; the others stay as they are.

    `benchmark=True` lets it time its algorithms for each new shape and keep the fastest.
    """
    settings = torch.backends.cudnn
    kept = {name: getattr(settings, name) for name in ("benchmark", "deterministic", "allow_tf32")}
    return settings.flags(enabled=True, **{**kept, **changes})


def exact_float32() -> AbstractContextManager[None]:
    """On CUDA, convolutions would use TF32, which has 10 bits; elsewhere this changes nothing.

    Without TF32, what cuDNN uses unless it times its algorithms can be ten times slower than the
    best of them, and far less exact: on an H200 it moved flows by 0.1 px in the mean.
    """
    return cudnn_flags(allow_tf32=False, benchmark=True)


def has_bf16(device: torch.device) -> bool:
    """Whether `device` has bfloat16 arithmetic; a CPU without it emulates it, very slowly."""
    return device.type != "cpu" or processor.ask().bf16


def warn_if_emulated(precision: str, device: torch.device, instead: str) -> None:
    """Warn if `precision` is very slow on this device, and say what to do `instead`."""
    if precision == "bf16" and not has_bf16(device):
        warnings.warn(
            f"this CPU has no bf16 arithmetic: emulated, it can be a hundred times slower than "
            f"fp32; {instead}",
            SlowWarning,
            stacklevel=3,  # the caller of our caller
        )
