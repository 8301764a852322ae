"""Measures time, by the clock of the device where it has one, and peak memory."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

_WARM_UP = 2


class _Host:
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


class _Cuda(_Host):
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


def _meter(device: torch.device) -> _Host:
    return {"cuda": _Cuda}.get(device.type, _Host)(device)


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
