"""Settings of torch, and what it knows of the machine."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from ..errors import SlowWarning
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


@contextmanager
def training_arithmetic(precision: str) -> Iterator[None]:
    """The float32 arithmetic of a training step, until the `with` block ends.

    "fp32" is exact; with "tf32" and "bf16", cuDNN may use TF32 where convolutions are float32.
    Matrix products are exact in all three, which is torch's default.
    """
    matrices = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with exact_float32() if precision == "fp32" else cudnn_flags(allow_tf32=True):
            yield
    finally:
        torch.set_float32_matmul_precision(matrices)


def has_tf32(device: torch.device) -> bool:
    """Whether convolutions on `device` can use TF32: NVIDIA GPUs since Ampere."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


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
