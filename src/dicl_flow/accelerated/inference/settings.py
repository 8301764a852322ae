"""What torch is told, and asked, about the machine."""

import warnings
from contextlib import AbstractContextManager

import torch

from ...errors import SlowWarning


def cudnn_flags(**changes: bool) -> AbstractContextManager[None]:
    """Change some of cuDNN's settings for a while; the others stay as they are.

    `benchmark=True` lets it time its algorithms for each new shape and keep the fastest.
    """
    settings = torch.backends.cudnn
    kept = {name: getattr(settings, name) for name in ("benchmark", "deterministic", "allow_tf32")}
    return settings.flags(enabled=True, **{**kept, **changes})


def has_bf16(device: torch.device) -> bool:
    """Whether `device` computes in bfloat16; a CPU that does not emulates it, very slowly."""
    if device.type != "cpu":
        return True
    onednn = torch.backends.mkldnn.is_available()
    return onednn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def warn_if_emulated(precision: str, device: torch.device, instead: str) -> None:
    """Warn that `precision` is very slow on this device, and say what to do `instead`."""
    if precision == "bf16" and not has_bf16(device):
        warnings.warn(
            f"this CPU has no bf16 arithmetic: emulated, it can take a hundred times as long as "
            f"fp32; {instead}",
            SlowWarning,
            stacklevel=3,  # whoever asked our caller for it
        )
