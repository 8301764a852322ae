"""Measures time, peak memory and the speed of the machine; counts the work of a network."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ..config import NORMAL, QUALITIES, ModelConfig, Quality
from ..estimation.compute import gpu_name, instructions
from ..estimation.inputs import Feeding
from ..models import InitialFlow, build
from ..models.matching import MatchingNet, PairwiseMatcher

_WARM_UP = 2
_PROBES = {"cuda": (8192, 256)}  # side of a matrix and MiB of a copy that keep a device busy
_CONVOLUTIONS = nn.Conv2d | nn.ConvTranspose2d | nn.Conv3d
# Linux has only numbers for ARM's processors
_ARM_PARTS = {"0xd0c": "ARM Neoverse-N1", "0xd40": "ARM Neoverse-V1", "0xd49": "ARM Neoverse-N2"}


class _ProcessMeter:
    """The clock and the memory of this process; None where the system does not report memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._process = Path("/proc/self")

    def seconds(self, call: Callable[[], object]) -> float:
        start = perf_counter()
        call()
        return perf_counter() - start

    def reset_peak(self) -> None:
        if self._process.is_dir():
            (self._process / "clear_refs").write_text("5")

    def peak(self) -> int | None:
        if not self._process.is_dir():
            return None
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class _CudaMeter(_ProcessMeter):
    """The clock of a GPU, and the memory of torch's allocator, graphs included."""

    def seconds(self, call: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    def reset_peak(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        return torch.cuda.max_memory_reserved(self.device)


def _meter(device: torch.device) -> _ProcessMeter:
    return (_CudaMeter if device.type == "cuda" else _ProcessMeter)(device)


def median_seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of `repeats` calls after a warm-up."""
    for _ in range(_WARM_UP):
        call()
    meter = _meter(device)
    return median(meter.seconds(call) for _ in range(repeats))


class PeakMemory:
    """Peak memory while it is open, in bytes, minus what was in use before; None: unknown."""

    def __init__(self, device: torch.device) -> None:
        self.bytes: int | None = None
        self._meter = _meter(device)

    def __enter__(self) -> "PeakMemory":
        self._meter.reset_peak()
        self._before = self._meter.peak()
        return self

    def __exit__(self, *_: object) -> None:
        peak = self._meter.peak()
        self.bytes = None if peak is None or self._before is None else peak - self._before


@dataclass
class Work:
    """Floating-point operations, and numbers that convolutions read and write."""

    operations: float = 0
    numbers: float = 0


def count_work(
    config: ModelConfig,
    batch: int,
    size: tuple[int, int],
    quality: Quality = QUALITIES[NORMAL],
) -> Work:
    """Count the convolutions of `batch` pairs of (height, width), with the first layer factored.

    In each pass both images go through the feature net, and the pair through each level that runs.
    """
    work = Work()
    with torch.device("meta"):
        model = build(config).eval()
    repeats = {  # factored, these layers run once instead of once for each displacement
        matcher.net.first.conv: (2 * matcher.radius + 1) ** 2
        for matcher in model.modules()
        if isinstance(matcher, PairwiseMatcher) and isinstance(matcher.net, MatchingNet)
    }
    for layer in model.modules():
        if isinstance(layer, _CONVOLUTIONS):
            layer.register_forward_hook(partial(_count, work, repeats.get(layer, 1)))
    for number, scale in enumerate(quality.scales):
        sides = Feeding.of(config, scale).seen(size)
        with torch.no_grad(), torch.device("meta"):
            image, flow = torch.empty(batch, 3, *sides), torch.empty(batch, 2, *sides)
            model(image, image, InitialFlow(flow, quality.start) if number else None)
    return work


def floor_seconds(work: Work, rates: tuple[float, float], dtype: torch.dtype) -> float:
    """Time at the peak rates of the machine: all operations or all traffic, whichever is longer."""
    return max(work.operations / rates[0], work.numbers * dtype.itemsize / rates[1])


def machine_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Measure operations per second of a matrix product and bytes per second of a copy."""
    side, mebibytes = _PROBES.get(device.type, (1024, 64))
    if device.type == "cpu" and dtype == torch.float16:
        dtype = torch.float32  # most layers; torch takes seconds for such a product of float16
    matrix = torch.randn(side, side, device=device).to(dtype)
    source = torch.empty(mebibytes << 20, dtype=torch.uint8, device=device)
    product = median_seconds(lambda: matrix @ matrix, device, repeats=10)
    copy = median_seconds(source.clone, device, repeats=10)
    return 2 * side**3 / product, 2 * source.numel() / copy


def _count(
    work: Work, repeats: int, layer: nn.Module, inputs: tuple[Tensor], output: Tensor
) -> None:
    assert isinstance(layer, _CONVOLUTIONS)
    pixels = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else output
    positions = pixels.numel() // pixels.shape[1]
    work.operations += 2 * positions * layer.weight.numel() / repeats
    work.numbers += inputs[0].numel() / repeats + output.numel() + layer.weight.numel()


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The device by name, its threads and the version of torch."""
    return {
        "torch": torch.__version__,
        "device": gpu_name(device) or _processor(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    """The name of the processor (Linux) or its kind, its instructions (x86) and its threads."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    about = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    name = about.get("model name") or _ARM_PARTS.get(about.get("CPU part", ""), platform.machine())
    found = instructions()
    return f"{name}{found and f' with {found}'}, {torch.get_num_threads()} threads"
