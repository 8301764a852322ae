"""Measures time, by the clock of the device where it has one, and peak memory."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

_WARM_UP = 2


def median_seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of `repeats` calls after a warm-up."""
    timed = _cuda_seconds if device.type == "cuda" else _host_seconds
    for _ in range(_WARM_UP):
        call()
    return median(timed(call) for _ in range(repeats))


def _cuda_seconds(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def _host_seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


class PeakMemory:
    """Peak memory while it is open, in bytes, minus what was in use before.

    On CUDA, the memory of the allocator, graphs included; elsewhere that of the process, None
    where the system does not report it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes: int | None = None
        self._process = Path("/proc/self")

    def __enter__(self) -> "PeakMemory":
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self._process.is_dir():
            (self._process / "clear_refs").write_text("5")  # resets the peak
        self._before = self._peak()
        return self

    def __exit__(self, *_: object) -> None:
        peak = self._peak()
        self.bytes = None if peak is None or self._before is None else peak - self._before

    def _peak(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device)
        if not self._process.is_dir():
            return None
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
