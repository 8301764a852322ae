"""Memory: what an estimate needs, what is free, and how much to compute at a time."""

import os
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from .winograd import dtype_of_most

_AT_ONCE = {"cpu": 8 << 20}  # bytes of the first layer that stay in the processor's cache
# Elsewhere more at once is faster: at least these bytes and this number of displacements, but no
# more than these shares of a limit or of the device's memory.
_AT_ONCE_ELSEWHERE, _AT_LEAST = 160 << 20, 17
_SHARE_OF_LIMIT, _SHARE_OF_DEVICE = 1 / 7, 1 / 16
# Measured at the peak of the network, for each pixel of a pair: bytes whatever the precision,
# and numbers in that precision.
_FAST = {"cuda": (0, 200), "cpu": (310, 45)}
_PLAIN = {"cuda": (0, 6800), "cpu": (0, 1200)}  # cuDNN's workspaces; 1090 measured on a CPU
_FIXED = {"cuda": 256 << 20}
_FRAMES = 4  # times the bytes of a frame: both of them, their copies, flow and weights of tiles
_HEADROOM = 0.8  # of what is free


def displacements_at_once(first_layer: Tensor, memory_limit: int | None) -> int:
    """How many displacements the matching net computes together, by the size of one of them."""
    size, device = first_layer.numel() * first_layer.element_size(), first_layer.device
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
    """What is needed in addition: weights, a chunk, (B, 3, H, W) frames, the flow.

    0 on devices where all of it is counted with the pixels.
    """
    if device.type not in _FIXED:
        return 0
    return _FIXED[device.type] + _FRAMES * image.numel() * image.element_size()


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
