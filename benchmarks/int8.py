"""Precision int8 on a CPU: the time of an estimate, and how far the flow is from float32's.

    python -m benchmarks.int8 FOLDER -o int8.json                      # with VNNI, without AMX
    python -m benchmarks.int8 FOLDER --against bf16 -o int8-amx.json   # with AMX

With AMX, ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI makes the first command compute as without.

On a pair of `--size`, on one thread, processor time (other programs disturb the time that passes),
in runs that alternate. On the real pairs of FOLDER, as in `yardstick.py`: the mean distance from
the flow in float32, and the EPE.
"""

import dicl_flow  # isort: skip (first: torch reads what it sets)

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from datetime import date
from operator import truediv
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.yardstick import SETS, find_pairs
from dicl_flow.data import demo_pairs, read_frames, read_sample
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.evaluation import endpoint_error
from dicl_flow.files import Array, read_image, write_files
from dicl_flow.lab.speed import describe_machine

QUALITIES = ("live", "normal")
Errors = dict[str, dict[str, dict[str, float]]]


def time_in_turns(
    estimators: Mapping[str, FlowEstimator], frames: Sequence[Array], repeats: int
) -> dict[str, dict[str, float]]:
    """Milliseconds of the processor for an estimate, in runs that alternate.

    `times faster` is the median over the rounds: the speed of a busy machine changes meanwhile.
    """
    runs: dict[str, list[float]] = {name: [] for name in estimators}
    for number in range(repeats + 2):
        for name, estimator in estimators.items():
            start = process_time()
            estimator(*frames)
            if number > 1:
                runs[name].append(process_time() - start)
    first = next(iter(runs.values()))
    return {
        name: {
            "median": round(1000 * median(times), 1),
            "minimum": round(1000 * min(times), 1),
            "times faster": round(median(map(truediv, first, times)), 3),
        }
        for name, times in runs.items()
    }


def measure_errors(
    estimators: Mapping[str, FlowEstimator], folder: Path, names: Sequence[str]
) -> Errors:
    """By set and pair: the EPE of each estimator, and the distance from the first one's flow."""
    found: Errors = {}
    for name in names:
        for pair in find_pairs(folder, name):
            frames, sample = read_frames(pair), read_sample(pair)
            flows = {key: estimator(*frames).flow for key, estimator in estimators.items()}
            base, numbers = next(iter(flows.values())), {}
            for key, flow in flows.items():
                error = endpoint_error(flow, sample.flow)[sample.valid]
                numbers[f"{key} EPE"] = float(f"{error.mean():.5g}")
                distance = np.linalg.norm(flow - base, axis=-1).mean()
                numbers[f"{key} px"] = float(f"{distance:.4g}")
            found.setdefault(name, {})[pair.name] = numbers
            print(name, pair.name, numbers, flush=True)
    return found


def summarize(errors: Errors) -> dict[str, float]:
    """The mean of each number, every set counting equally."""
    sets = [list(pairs.values()) for pairs in errors.values()]
    return {
        key: round(fmean(fmean(one[key] for one in pairs) for pairs in sets), 5)
        for key in sets[0][0]
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all, and return the document."""
    torch.set_num_threads(1)
    width, height = map(int, arguments.size.split("x"))
    pair = demo_pairs()[0]
    images = [read_image(path) for path in (pair.image1, pair.image2)]
    frames = [cv2.resize(image, (width, height)) for image in images]
    document: dict[str, Any] = {
        **describe_machine(torch.device("cpu")),
        "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
        "date": date.today().isoformat(),
        "size": arguments.size,
        "milliseconds": {},
        "pairs": {},
        "mean of the sets": {},
    }
    for quality in QUALITIES:
        estimators = {
            precision: dicl_flow.load(device="cpu", precision=precision, quality=quality)
            for precision in dict.fromkeys(("fp32", arguments.against, "int8"))
        }
        timed = {name: estimators[name] for name in (arguments.against, "int8")}
        times = time_in_turns(timed, frames, arguments.repeats)
        document["milliseconds"][quality] = times
        print(quality, times, flush=True)
        if arguments.folder is not None:
            found = measure_errors(estimators, arguments.folder, arguments.set or [*SETS])
            document["pairs"][quality] = found
            document["mean of the sets"][quality] = summarize(found)
            print(quality, summarize(found), flush=True)
    return document


def main() -> None:
    """Print what was measured, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("DICL_FLOW_DATASETS")
    parser.add_argument("folder", type=Path, nargs="?", default=folder and Path(folder))
    parser.add_argument("--against", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--size", default="640x384", help="of the pair whose time is measured")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--set", action="append", help="only this set; repeatable")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    try:
        document = run(arguments)
    except InputError as error:
        parser.error(str(error))
    if arguments.output:
        write_files({arguments.output: (json.dumps(document, indent=1) + "\n").encode()})


if __name__ == "__main__":
    main()
