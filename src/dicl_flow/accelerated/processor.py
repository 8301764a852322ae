"""What this machine's CPU can do, and how many of its cores this process may use."""

import os
from collections.abc import Iterator
from functools import cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import torch

from . import private

_ASKED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Processor(NamedTuple):
    """What decides how to compute."""

    onednn: bool = False
    """torch has oneDNN, and the functions that `private` names."""
    amx: bool = False
    """oneDNN has matrix units for bfloat16."""
    bf16: bool = False
    """oneDNN computes in bfloat16; else it is emulated, very slowly."""
    fp16: bool = False
    """The same in float16."""
    acl: bool = False
    """oneDNN calls the Arm Compute Library, and torch has NNPACK."""


@cache
def ask() -> Processor:
    """Ask torch."""
    onednn = torch.backends.mkldnn
    if not onednn.is_available():
        return Processor()
    return Processor(
        onednn=private.has_onednn_convolutions(),
        amx=private.has_amx() and _may_use_amx(),
        bf16=private.has_bf16(),
        fp16=private.has_fp16(),
        acl=onednn.is_acl_available() and private.has_nnpack(),
    )


def instructions() -> str:
    """The instructions that matter most for speed on x86, as "AVX-512"; "" if torch uses none."""
    vectors = {"AVX512": "AVX-512", "AVX2": "AVX2"}
    return "AMX" if ask().amx else vectors.get(torch.backends.cpu.get_cpu_capability(), "")


def _may_use_amx() -> bool:
    """Whether the variable that limits oneDNN's instructions, which torch ignores, allows AMX."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL"
    return limit.upper() in ("ALL", "DEFAULT") or "AMX" in limit.upper()


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
