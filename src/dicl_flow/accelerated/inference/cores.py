"""How many threads to compute with on a CPU: one for each core that this process may use."""

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import torch

_ASKED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def limit_threads() -> None:
    """Let torch start no more threads than there are cores, unless a number was asked for.

    torch counts processors: two for some cores, and those beyond a container's share of time.
    """
    if not any(name in os.environ for name in _ASKED):
        cores = usable_cores()
        if cores < torch.get_num_threads():
            torch.set_num_threads(cores)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use, by its affinity and by the shares of its control groups."""
    return max(1, min([len(_cores(root)), *map(ceil, _shares(root))]))


def _cores(root: Path) -> set[str]:
    """One name for each core; the processors of one core name the same siblings."""
    if hasattr(os, "sched_getaffinity"):
        processors = os.sched_getaffinity(0)
    else:  # macOS and Windows
        processors = set(range(os.cpu_count() or 1))
    folder = root / "sys/devices/system/cpu"
    files = {cpu: folder / f"cpu{cpu}/topology/thread_siblings_list" for cpu in processors}
    return {_read(file) or f"{cpu}" for cpu, file in files.items()}


def _shares(root: Path) -> Iterator[float]:
    """Processors that each group of this process may keep busy, of those with a limit."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / ("sys/fs/cgroup/cpu" if controllers else "sys/fs/cgroup")
        group = top / path.lstrip("/")
        # in a container the path may be that of the host: then only the top exists
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                yield from _limit(folder)


def _limit(group: Path) -> list[float]:
    """[time / period], or [] without a limit."""
    both = _read(group / "cpu.max").split()
    if not both:
        both = [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if not all(both) or both[0] in ("max", "-1"):
        return []
    return [int(both[0]) / int(both[1])]


def _read(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""
