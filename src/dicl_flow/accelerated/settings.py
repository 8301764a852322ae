"""The machine and how torch uses it: its processor, its memory, the arithmetic of a GPU."""

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..environ import SPIN_COUNT, threads_spin_long
from ..errors import InputError, SlowWarning
from . import private

_CPU = torch.device("cpu")
_AT_ONCE = {"cpu": 8 << 20}  # bytes of the first layer that stay in the processor's cache
# Elsewhere more at once is faster: at least these bytes and this number of displacements, but no
# more than these shares of a limit or of the device's memory.
_AT_ONCE_ELSEWHERE, _AT_LEAST = 160 << 20, 17
_SHARE_OF_LIMIT, _SHARE_OF_DEVICE = 1 / 7, 1 / 16
# Measured at the peak of the network, for each pixel of a pair: bytes whatever the precision,
# and numbers in that precision.
_FAST = {"cuda": (0, 200), "cpu": (320, 45)}
_PLAIN = {"cuda": (0, 6800), "cpu": (0, 1200)}  # cuDNN's workspaces; 1090 measured on a CPU
_FIXED = 256 << 20
_FRAMES = 4  # times the bytes of a frame: both of them, their copies, flow and weights of tiles
_HEADROOM = 0.8  # of what is free
# Of malloc.h: from which size on memory is the system's own, and how much free memory is kept.
_MALLOC = {-3: 32 << 20, -1: 1 << 30}  # GNU's library allows no more than 32 MiB


class Processor(NamedTuple):
    """What decides how to compute."""

    onednn: bool = False  # torch has oneDNN, and the functions that `private` names
    amx: bool = False  # oneDNN has matrix units for bfloat16
    vnni: bool = False  # it has instructions for sums of products of bytes
    bf16: bool = False  # oneDNN computes in bfloat16; else it is emulated, very slowly
    fp16: bool = False  # the same in float16
    acl: bool = False  # oneDNN calls the Arm Compute Library, and torch has NNPACK


@cache
def processor() -> Processor:
    """What torch says of this one."""
    onednn = torch.backends.mkldnn
    if not onednn.is_available():
        return Processor()
    return Processor(
        onednn=private.has_onednn_convolutions(),
        amx=private.says("amx") and _allowed("AMX"),
        vnni=private.says("vnni")
        and private.has_int8_convolutions()
        and _allowed("VNNI", "BF16", "FP16", "AMX"),
        bf16=private.says("bf16"),
        fp16=private.says("fp16"),
        acl=onednn.is_acl_available() and private.says("nnpack"),
    )


def instructions() -> str:
    """The instructions that matter most for speed on x86, as "AVX-512"; "" if torch uses none."""
    vectors = {"AVX512": "AVX-512", "AVX2": "AVX2"}
    return "AMX" if processor().amx else vectors.get(torch.backends.cpu.get_cpu_capability(), "")


def _allowed(*instructions: str) -> bool:
    """Whether the variable that limits oneDNN's instructions, which torch ignores, names these."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL"
    names = ("ALL", "DEFAULT", *instructions)
    return any(name in limit.upper() for name in names)


def limit_threads() -> None:
    """Let torch start no more threads than there are cores, unless a number was asked for.

    torch counts processors: two for some cores, and those beyond a container's share of time.
    """
    if not any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
        cores = usable_cores()
        if cores < torch.get_num_threads():
            torch.set_num_threads(cores)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep memory that tensors free, unless the environment says otherwise.

    Memory that the system takes back comes again page by page.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    asked = "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)
    for parameter, value in ({} if asked else _MALLOC).items():
        _c_library("mallopt", parameter, value)


def return_freed_memory() -> None:
    """Give it back now."""
    _c_library("malloc_trim", 0)


def _c_library(name: str, *arguments: int) -> int | None:
    """Call a function of GNU's C library; others have none of that name."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    return None if function is None else int(function(*arguments))


def warn_if_spinning() -> None:
    """Warn once if threads spin for long, waiting for cores that other programs use as well.

    Nothing else is done: fewer threads were faster in some measurements, slower in others.
    """
    if threads_spin_long() and torch.get_num_threads() > 1 and _has_gnu_openmp() and _is_busy():
        _warn_of_spinning()


@cache
def _warn_of_spinning() -> None:
    warnings.warn(
        "other programs use this CPU, and torch's threads wait for each other by spinning: "
        f"estimates can take several times longer than necessary; `import dicl_flow` before "
        f"torch, or export {SPIN_COUNT}=10000",
        SlowWarning,
        stacklevel=1,  # it is about the process
    )


@cache
def _has_gnu_openmp() -> bool:
    return "libgomp" in _read(Path("/proc/self/maps"))


def _is_busy() -> bool:
    """Whether more threads, ours included, ran in the last minute than there are processors."""
    return os.getloadavg()[0] > (os.cpu_count() or 1) + 0.5


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


def has_winograd(device: torch.device = _CPU) -> bool:
    """Whether NNPACK's convolutions were measured to be the fastest of `device`."""
    return device.type == "cpu" and processor().acl


def dtype_of_most(dtype: torch.dtype, device: torch.device = _CPU) -> torch.dtype:
    """In which format to compute layers that are not strided: their float32 is faster."""
    return torch.float32 if dtype == torch.float16 and has_winograd(device) else dtype


def cudnn_flags(**changes: bool) -> AbstractContextManager[None]:
    """Change some settings of cuDNN in a `with` block; the others stay as they are."""
    settings = torch.backends.cudnn
    kept = {name: getattr(settings, name) for name in ("benchmark", "deterministic", "allow_tf32")}
    return settings.flags(enabled=True, **{**kept, **changes})


def exact_float32() -> AbstractContextManager[None]:
    """On CUDA, convolutions would use TF32, which has 10 bits; elsewhere this changes nothing.

    cuDNN times its algorithms: others than the best can be ten times slower and far less exact (on
    an H200, 0.1 px in the mean).
    """
    return cudnn_flags(allow_tf32=False, benchmark=True)


@contextmanager
def training_arithmetic(precision: str) -> Iterator[None]:
    """The float32 arithmetic of a training step, until the `with` block ends.

    "fp32" is exact; with "tf32" and "bf16", cuDNN may use TF32. Matrix products always are exact.
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
    return device.type != "cpu" or processor().bf16


def warn_if_emulated(precision: str, device: torch.device, instead: str) -> None:
    """Warn if `precision` is very slow on this device, and say what to do `instead`."""
    if precision == "bf16" and not has_bf16(device):
        warnings.warn(
            f"this CPU has no bf16 arithmetic: emulated, it can be a hundred times slower than "
            f"fp32; {instead}",
            SlowWarning,
            stacklevel=3,  # the caller of our caller
        )


def displacements_at_once(first_layer: Tensor, memory_limit: int | None) -> int:
    """How many displacements the matching net computes together, by the size of one of them."""
    size, device = first_layer.nbytes, first_layer.device
    budget = _AT_ONCE.get(device.type, max(_AT_ONCE_ELSEWHERE, _AT_LEAST * size))
    if memory_limit is not None:
        budget = min(budget, int(_SHARE_OF_LIMIT * memory_limit))
    elif device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        budget = min(budget, int(_SHARE_OF_DEVICE * total))
    return max(1, budget // size)


def network_bytes(dtype: torch.dtype, device: torch.device, *, fast: bool) -> int:
    """Bytes for each pixel of a pair at the peak; the plain network keeps all displacements."""
    table = _FAST if fast else _PLAIN
    constant, numbers = table.get(device.type, table["cuda"])
    return constant + numbers * (dtype_of_most(dtype, device) if fast else dtype).itemsize


def fixed_bytes(image: Tensor, device: torch.device) -> int:
    """What CUDA needs in addition: weights, a chunk, (B, 3, H, W) frames, the flow."""
    return _FIXED + _FRAMES * image.nbytes if device.type == "cuda" else 0


def available_bytes(device: torch.device) -> int:
    """Memory that a pass may use: most of what is free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(_HEADROOM * (free + reusable))
    return int(_HEADROOM * _free_host_bytes())


def check_limit(limit: int, needed: int, frames: str, hint: str = "") -> None:
    """Refuse a limit below the bytes `needed`; the error names the smallest possible limit."""
    if limit < needed:
        least = ceil(100 * needed / 2**30) / 100
        raise InputError(
            f"{limit / 2**30:.2f} GiB is too little memory for {frames}: it takes at "
            f"least {least:.2f} GiB; raise `memory_limit`, or use smaller frames or batches{hint}"
        )


def _free_host_bytes() -> int:
    """Free memory; on Linux, with what the system would release."""
    table = Path("/proc/meminfo")
    if table.exists():
        lines = (line.split() for line in table.read_text().splitlines())
        return next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
