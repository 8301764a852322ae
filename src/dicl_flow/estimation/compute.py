"""Where and how to compute: device, backend, precision and memory."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..accelerated import available_bytes
from ..accelerated import usable_cores as usable_cores
from ..accelerated.processor import instructions as instructions
from ..errors import InputError, unknown_name

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "cpu", "cuda", "mps")
AS_ASKED = "as asked"


class Choice(NamedTuple):
    """A value and the reason for it."""

    value: str
    reason: str


@dataclass(frozen=True)
class Compute:
    """What runs, with nothing left to choose; `engines.choose_compute` makes it."""

    device: torch.device
    precision: str
    backend: str
    memory_limit: int | None
    """Bytes that an estimate may use; None: most of what is free."""
    reasons: tuple[str, str, str]
    """Why this device, this precision and this backend."""

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the precision."""
        return PRECISIONS[self.precision]

    @property
    def memory(self) -> int:
        """Bytes that an estimate may use now."""
        return self.memory_limit or available_bytes(self.device)

    def choices(self) -> dict[str, Choice]:
        """What was chosen, and why."""
        device, precision, backend = self.reasons
        memory = AS_ASKED if self.memory_limit else "most of what is free"
        return {
            "device": Choice(str(self.device), device),
            "backend": Choice(self.backend, backend),
            "precision": Choice(self.precision, precision),
            "memory": Choice(f"{self.memory / 2**30:.1f} GiB", memory),
        }


def choose_device(name: str) -> torch.device:
    """Turn a device name into an available device, or raise an error that says what is wrong."""
    available = _available_devices()
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


def gpu_name(device: torch.device) -> str:
    """The name of a CUDA device; "" for any other."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def explain_device(device: torch.device) -> str:
    """Why `device` is the best one here."""
    others = {"mps": "no CUDA device", "cpu": "no CUDA device, no MPS"}
    return gpu_name(device) or others[device.type]


def _available_devices() -> dict[str, bool]:
    """By preference."""
    return {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
