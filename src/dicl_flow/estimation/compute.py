"""Where and how to compute: device, backend, precision, memory, and the engine that follows."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from ..accelerated import settings
from ..accelerated.cpu import AcceleratedDiclFlow
from ..accelerated.recording import Graphs
from ..accelerated.settings import (
    available_bytes,
    exact_float32,
    keep_freed_memory,
    limit_threads,
    network_bytes,
    warn_if_spinning,
)
from ..accelerated.settings import instructions as instructions
from ..accelerated.settings import return_freed_memory as return_freed_memory
from ..accelerated.settings import usable_cores as usable_cores
from ..accelerated.winograd import in_callers_thread
from ..config import PAPER_LEVELS, ModelConfig
from ..errors import InputError
from ..models import DiclFlow, FlowNetwork, has_matching_net
from ..ops import normalize, size_of
from .inputs import Feeding, demo_frames
from .names import check_backend, check_device, check_precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES["int8"] = torch.float32  # of what is not int8
AS_ASKED = "as asked"
_SHORT, _LONG = 256, 384  # px: sides of the frames that show how large values get

Result = TypeVar("Result")


class Choice(NamedTuple):
    """A value and the reason for it."""

    value: str
    reason: str


@dataclass(frozen=True)
class Compute:
    """What runs, with nothing left to choose; `choose_compute` makes it."""

    device: torch.device
    precision: str
    backend: str
    memory_limit: int | None
    """Bytes that an estimate may use; None: most of what is free."""
    reasons: Mapping[str, str]
    """Why this device, this backend and this precision."""

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the precision; with int8, that of the rest."""
        return DTYPES[self.precision]

    @property
    def memory(self) -> int:
        """Bytes that an estimate may use now."""
        return self.memory_limit or available_bytes(self.device)

    def choices(self) -> dict[str, Choice]:
        """What was chosen, and why."""
        why = AS_ASKED if self.memory_limit else "most of what is free"
        choices = {
            name: Choice(str(getattr(self, name)), why) for name, why in self.reasons.items()
        }
        return choices | {"memory": Choice(f"{self.memory / 2**30:.1f} GiB", why)}


class Engine:
    """A network on a device. Images are (B, 3, H, W) in [-1, 1], of a size that it takes."""

    def __init__(self, network: FlowNetwork, compute: Compute) -> None:
        self.network, self.compute = network, compute

    def fit(self, feeding: Feeding, *images: Tensor) -> list[Tensor]:
        """Frames (B, 3, H, W) in [0, 1] as the network takes them."""
        return [feeding.fit(normalize(image)) for image in images]

    def run(self, computation: Callable[..., Result], *inputs: Any) -> Result:
        """Run a computation of the network, in the arithmetic of this engine."""
        if self.compute.device.type == "cpu":
            warn_if_spinning()
        with self._arithmetic():
            return computation(*inputs)

    def record(self, computation: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The same computation, prepared for each shape that repeats where that is faster."""
        return computation

    def once(self) -> Choice:
        """How a single pair is computed, and why."""
        return Choice("as it comes", "nothing is prepared for a shape on this device")

    def pairs_at_once(self, fitting: int) -> int:
        """How many pairs to compute at a time, each in its thread; no more than `fitting`."""
        return 1

    def pairs_together(self) -> int:
        """How many pairs of one size to compute as a batch, if as many wait.

        A GPU takes two thirds of the time for each. A CPU gains little, and each pair would
        wait for all: it takes one.
        """
        return 1 if self.compute.device.type == "cpu" else 8

    def bytes_per_pixel(self) -> int:
        """Memory that each pixel of a pair needs at the size that the network sees."""
        return network_bytes(self.compute.dtype, self.compute.device, fast=True)

    def _arithmetic(self) -> AbstractContextManager[object]:
        return nullcontext()


class PlainEngine(Engine):
    """The network as it is written, on any device."""

    def once(self) -> Choice:
        """See `Engine`."""
        if self.compute.device.type != "cuda" or self.compute.precision != "fp32":
            return super().once()
        return Choice("search", "fp32: cuDNN times its algorithms per shape; its guess is inexact")

    def bytes_per_pixel(self) -> int:
        """See `Engine`: memory follows what is compared at the finest level."""
        config = self.network.config
        hypotheses = config.levels[-1].num_hypotheses / PAPER_LEVELS[-1].num_hypotheses
        relative = config.host_record.relative_memory * max(1.0, hypotheses)
        return int(network_bytes(self.compute.dtype, self.compute.device, fast=False) * relative)

    def _arithmetic(self) -> AbstractContextManager[object]:
        if self.compute.dtype == torch.float32:
            return exact_float32()
        return torch.autocast(self.compute.device.type, dtype=self.compute.dtype)


class CpuEngine(Engine):
    """The accelerated network in plain torch operations: for CPUs."""

    def pairs_at_once(self, fitting: int) -> int:
        """See `Engine`: what does not occupy all cores then leaves them to another pair."""
        threads = torch.get_num_threads()
        if settings.processor().acl:  # NNPACK's threads cannot be shared out
            return threads if in_callers_thread() and fitting >= threads else 1
        return min(threads, fitting, 8)  # on 16 cores, 16 pairs were 6 % faster than four


class CudaEngine(Engine):
    """The accelerated network made of Triton kernels; computations are recorded as CUDA graphs."""

    def fit(self, feeding: Feeding, *images: Tensor) -> list[Tensor]:
        """See `Engine`."""
        from ..accelerated.stem import normalized

        size = size_of(images[0])
        if feeding.keeps_pixels:
            fitted = normalized(images, feeding.seen(size), white=feeding.padding == "white")
        else:
            fitted = feeding.fit(normalized(images, size, white=False))
        return list(fitted.chunk(len(images)))

    def record(self, computation: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """See `Engine`."""
        return Graphs(computation)

    def once(self) -> Choice:
        """See `Engine`."""
        return Choice("no recording", "one pair: a CUDA graph takes longer than it saves")

    def _arithmetic(self) -> AbstractContextManager[object]:
        return exact_float32() if self.compute.dtype == torch.float32 else nullcontext()


def make_engine(
    model: FlowNetwork,
    compute: Compute,
    extremes: Mapping[str, Tensor] | None = None,
    *,
    int8_widely: bool = False,
) -> Engine:
    """Put a network on its device; an accelerated engine has its own copy.

    For precision int8, `extremes` are those of the weights, otherwise measured; `int8_widely` says
    that more than the matching nets computes in it.
    """
    if compute.backend == "plain":
        return PlainEngine(model.to(compute.device).eval(), compute)
    how = (compute.dtype, compute.memory_limit, compute.device)
    dicl = cast(DiclFlow, model).eval()  # the accelerated ones refuse other hosts
    if compute.precision == "int8":
        from ..accelerated.int8 import Int8DiclFlow

        found = extremes or int8_extremes(dicl)
        limit = compute.memory_limit
        return CpuEngine(Int8DiclFlow(dicl, found, limit, widely=int8_widely), compute)
    if compute.device.type != "cuda":
        return CpuEngine(AcceleratedDiclFlow(dicl, *how), compute)
    from ..accelerated.cuda import KernelDiclFlow  # imports Triton

    return CudaEngine(KernelDiclFlow(dicl, *how), compute)


def int8_extremes(model: FlowNetwork) -> dict[str, Tensor]:
    """How large values get on frames of the demo; nothing for a network that has no int8.

    It takes as long as an estimate.
    """
    from ..accelerated.extremes import measure_extremes

    if not has_matching_net(model.config):
        return {}
    multiple = model.config.pad_multiple
    size = (multiple * -(-_SHORT // multiple), multiple * -(-_LONG // multiple))
    pairs = [demo_frames(size, name=name) for name in ("bunny", "rendered")]
    frames = [(normalize(one / 255), normalize(two / 255)) for one, two in pairs]
    return measure_extremes(cast(DiclFlow, model), frames)


def choose_compute(
    config: ModelConfig,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    memory_limit: int | None = None,
    *,
    int8: bool = False,
) -> Compute:
    """Resolve every "auto" for the network that `config` describes; refuse unknown names.

    `int8` says that the weights bring what int8 needs. On a CPU, this also limits torch's threads
    to the cores that this process may use, and lets it keep freed memory.
    """
    place = choose_device(device)
    if place.type == "cpu":
        limit_threads()
        keep_freed_memory()
    check_backend(backend)
    check_precision(precision)
    others = {"mps": "no CUDA device", "cpu": "no CUDA device, no MPS"}
    why = (gpu_name(place) or others[place.type]) if device == "auto" else AS_ASKED
    path = _best_backend(config, place) if backend == "auto" else Choice(backend, AS_ASKED)
    number_format = Choice(precision, AS_ASKED)
    if precision == "auto":
        number_format = best_precision(path.value, place, int8=int8)
    if precision == "int8" and not _has_int8(path.value, place):
        raise InputError(
            "precision 'int8' needs an x86 processor with VNNI, device 'cpu' and backend 'fast'; "
            "use `precision='auto'`"
        )
    reasons = {"device": why, "backend": path.reason, "precision": number_format.reason}
    return Compute(place, number_format.value, path.value, memory_limit, reasons)


def best_precision(backend: str, device: torch.device, *, int8: bool = False) -> Choice:
    """What precision "auto" means; see `choose_compute`."""
    if backend == "plain":
        return Choice("fp32", "the plain backend's default")
    if device.type == "cuda":
        return Choice("fp16", "the best of the kernels on CUDA")
    cpu = settings.processor()
    if cpu.amx:
        return Choice("bf16", "this processor has AMX")
    if cpu.vnni and int8:
        return Choice("int8", "this processor has VNNI, but no AMX")
    if cpu.acl and cpu.fp16:
        return Choice("fp16", "for strided layers, as this ARM processor has fp16 arithmetic")
    missing = "ARM processor has no fp16 arithmetic" if cpu.acl else "processor has no AMX"
    return Choice("fp32", f"this {missing}")


def _has_int8(backend: str, device: torch.device) -> bool:
    return backend == "fast" and device.type == "cpu" and settings.processor().vnni


def _best_backend(config: ModelConfig, device: torch.device) -> Choice:
    if not has_matching_net(config):
        network = f"host {config.host!r} with matcher {config.matcher!r}"
        return Choice("plain", f"{network} has no accelerated version")
    if device.type not in ("cpu", "cuda"):
        return Choice("plain", f"there is no accelerated version for {device.type.upper()}")
    if device.type == "cuda" and find_spec("triton") is None:
        return Choice("plain", "Triton is not installed")
    return Choice("fast", "this network has an accelerated version for this device")


def choose_device(name: str) -> torch.device:
    """Turn a device name into an available device, or raise an error that says what is wrong."""
    check_device(name)
    available = {  # by preference
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind, _, index = name.partition(":")
    if not available[kind]:
        raise InputError(f"no {kind} device on this machine; use `device='cpu'`")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(f"no device {name}: this machine has {torch.cuda.device_count()}")
    return torch.device(name)


def gpu_name(device: torch.device) -> str:
    """The name of a CUDA device; "" for any other."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""
