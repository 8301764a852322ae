"""The first result: `dicl-flow flow` in fresh processes, from their start to their end."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..files import Array, encode_image, write_files
from .speed_cases import Case, moving_pattern

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that name the folders of compiled kernels."""
COLUMNS = (
    *("torch", "import", "weights", "prepare", "estimate", "write"),  # as `flow` names them
    *("other", "total", "beyond_torch", "cpu"),
)
LEGEND = """\
Seconds of `dicl-flow flow` in a fresh process; medians.
cache: whether Triton's kernels had been compiled before; it has none on a CPU
torch, import: the imports of torch and of this package
prepare: the network that computes, on its device
other: the start of Python, the command line, reading the frames, the end of Python
beyond torch: total without the import of torch
cpu: seconds of all processor cores together"""


class First(NamedTuple):
    """The medians of several runs."""

    cache: str
    """Of kernels: "empty", "full", or "-" where there is none."""
    seconds: Mapping[str, float]
    """By column."""


def measure_first(
    case: Case, device: torch.device, command: Sequence[str], repeats: int
) -> Iterator[First]:
    """Run `command`, which estimates on the device and prints JSON, on a pair.

    On CUDA it runs with empty and with full caches.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        frames = [folder / f"frame{number}.png" for number in (1, 2)]
        pictures = zip(frames, moving_pattern(case), strict=True)
        write_files({path: encode_image(path, _picture(image)) for path, image in pictures})
        words = [*command, *map(str, frames), "-o", str(folder / "flow.flo")]
        if device.type != "cuda":
            yield _median("-", [_run(words, {}) for _ in range(repeats)])
            return
        caches = [{key: str(folder / f"{key}-{n}") for key in CACHES} for n in range(repeats)]
        for state in ("empty", "full"):  # what the first runs compile, the others find
            yield _median(state, [_run(words, cache) for cache in caches])


def _picture(images: Tensor) -> Array:
    """(1, 3, H, W) in [0, 1] -> (H, W, 3) uint8."""
    return np.asarray((255 * images[0]).round().byte().permute(1, 2, 0))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Run a command once; return its seconds, by column."""
    start, before = perf_counter(), os.times()
    ended = subprocess.run(command, capture_output=True, env=os.environ | environment, check=False)
    total, after = perf_counter() - start, os.times()
    if ended.returncode:
        raise InputError(ended.stderr.decode(errors="replace").strip().removeprefix("error: "))
    parts: dict[str, float] = json.loads(ended.stdout)["parts"]
    busy = after.children_user + after.children_system
    busy -= before.children_user + before.children_system
    sums = {"other": total - sum(parts.values()), "total": total}
    return {**parts, **sums, "beyond_torch": total - parts["torch"], "cpu": busy}


def _median(cache: str, runs: Sequence[Mapping[str, float]]) -> First:
    return First(cache, {column: median(run[column] for run in runs) for column in COLUMNS})
