"""Damaged files of every format that is read: each gives a right answer or one sentence.

    python -m campaigns.files --count 1000 --seed 1 --only png,npz -o report.json
    python -m campaigns.files --seed 1 --only png --repeat 17
    python -m campaigns.files --seed 1 --only png --guided yes

Every file is made from a small one by random changes; many of them know the format, so that what
is damaged is not found out by the first checksum. A worker process reads it. Allowed is a right
answer, or an `InputError` of one sentence that names the file. Everything else is a failure:
another exception, a crash, more than 10 s of processor time, more memory than 1 GiB or 8 times the
decoded array, whichever is more. `--repeat` reads one file here, with its traceback. With
`--guided`, half of the files are made from those that were the first to reach some code.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dicl_flow import InputError

from .formats import Format
from .guided import Guide
from .report import Options, Part, main
from .workers import Attempt, attempts

_LONGEST = 2000  # characters of a sentence


_MODULES = {
    "flows": (
        *("flo", "pfm", "kitti", "npz", "npy", "flo5", "exr", "st-exr"),
        *("viper", "virtual-kitti", "kitti-disparity", "sintel-disparity"),
    ),
    "images": ("png", "jpg", "tiff", "webp", "bmp", "ppm", "other-images"),
    "weights": ("safetensors", "legacy"),
    "tables": ("recipe", "manifest", "own-manifest", "parquet"),
    "videos": ("video", "video-opencv"),
}


def find(name: str) -> Format:
    """Return a format; only the libraries that it needs are imported."""
    module = next(module for module, names in _MODULES.items() if name in names)
    found: Format = import_module(f"{__package__}.formats.{module}").FORMATS[name]
    return found


def run(options: Options) -> dict[str, Part]:
    """Try each format."""
    names = (name for names in _MODULES.values() for name in names)
    return {name: _run(name, options) for name in names if options.wants(name)}


def _run(name: str, options: Options) -> Part:
    part, largest, slowest, jumps = Part(), 0, 0.0, list[int]()
    numbers = range(options.count or find(name).count)
    with tempfile.TemporaryDirectory() as folder:
        for number, attempt in attempts(prepare, (name, options, folder), numbers):
            if attempt.failure:
                part.failures.append(f"{number}: {attempt.failure}")
                print(f"{name} {part.failures[-1]}", flush=True)
            else:
                part.outcomes[attempt.outcome] += 1
            largest, slowest = max(largest, attempt.memory), max(slowest, attempt.seconds)
            jumps.append(attempt.jumps)
    part.measured = {"largest_mib": largest >> 20, "slowest_seconds": round(slowest, 2)}
    if max(jumps):
        part.measured["jumps"] = [jumps[0], max(jumps)]
    print(f"{name}: {part.tried:,} tried, {len(part.failures):,} failed", flush=True)
    return part


def prepare(name: str, options: Options, folder: str) -> Callable[[int], Attempt]:
    """Return what a worker does for each number."""
    form = find(name)
    guide = Guide(form)
    if options.more.get("--guided"):
        form = guide.form
    seeds = form.seeds()
    path = Path(folder) / f"damaged{form.suffix}"
    answers = []
    for seed in seeds:
        path.write_bytes(seed)
        answers.append(form.read(path))

    def attempt(number: int) -> Attempt:
        try:
            data = form.mutated(options.dice(name, number), seeds)
        except Exception as error:
            return Attempt(failure=f"the campaign itself fails: {error!r}")
        path.write_bytes(data)
        try:
            result = form.read(path)
        except (InputError, FileNotFoundError) as error:  # a manifest may list what is missing
            return Attempt("refused", _not_a_sentence(str(error), path.name))
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            return Attempt(failure=f"{type(error).__name__}: {text}")
        try:
            problem = form.problem(data, result) or _wrong(form, data, result, seeds, answers)
        except Exception as error:
            problem = f"a second reader refuses it: {type(error).__name__}: {error}"
        return Attempt("read", problem, decoded=_size(result))

    return lambda number: replace(attempt(number), jumps=len(guide.jumps))


def _not_a_sentence(text: str, name: str) -> str:
    if name not in text:
        return f"does not name the file: {text[:200]}"
    if "\n" in text or len(text) > _LONGEST:
        return f"not one sentence: {text[:200]!r} ({len(text)} characters)"
    return ""


def _wrong(form: Format, data: bytes, result: Any, seeds: list[bytes], answers: list[Any]) -> str:
    """Whether a truncated file was read as if it were whole, but differs from the whole one."""
    if form.shortens:
        return ""
    whole = [a for seed, a in zip(seeds, answers, strict=True) if seed.startswith(data)]
    return "" if not whole or any(_equal(result, a) for a in whole) else "truncated, but read"


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
    if hasattr(one, "equal"):
        return bool(one.equal(two))
    return bool(one == two)


def _size(result: Any) -> int:
    """Bytes of all arrays."""
    if isinstance(result, Mapping):
        return sum(map(_size, result.values()))
    if isinstance(result, list):
        return sum(map(_size, result))
    return int(getattr(result, "nbytes", 0))


def _repeat(number: int, name: str, seed: int) -> None:
    """Read one file in this process, and leave it there."""
    form = find(name)
    data = form.mutated(Options(None, seed).dice(name, number), form.seeds())
    path = Path(tempfile.mkdtemp()) / f"damaged{form.suffix}"
    path.write_bytes(data)
    print(path, len(data), "bytes", data[:64])
    print(form.read(path))


if __name__ == "__main__":
    if "--repeat" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--repeat", type=int, required=True)
        parser.add_argument("--only", required=True)
        parser.add_argument("--seed", type=int, default=0)
        given = parser.parse_args()
        _repeat(given.repeat, given.only, given.seed)
    else:
        main("files", __doc__, run, more={"--guided": ""})
