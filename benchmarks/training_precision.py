"""One step of a published stage in float32, TF32 and bfloat16: time and memory.

    python benchmarks/training_precision.py -o precision.json            # chairs-2 and things
    python benchmarks/training_precision.py --stage chairs-2 --precision fp32 --backend plain

Random batches of the recipe's size stay on the device: no loading, no augmentation. Each line is a
fresh network with the same seed and batch. The time is the median of `--steps` steps, fewer after
`--seconds`; the memory is the most that torch allocated and reserved, cuDNN's search and the
recording of the step included. Progress goes to stderr, the JSON to `-o`, after every row, or to
stdout. In float32 the first steps of `chairs-2` take minutes on an H200; `--batch 8` takes less.

`--rehearse` runs everything on the CPU with a tiny network and tiny frames (bf16 only if the CPU
has it, or if asked for); its numbers mean nothing.
"""

import argparse
import gc
import json
import sys
from dataclasses import replace
from datetime import date
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from dicl_flow.accelerated.settings import has_bf16
from dicl_flow.config import TrainConfig
from dicl_flow.config.training import BACKENDS, TRAINING_PRECISIONS
from dicl_flow.data import FlowBatch
from dicl_flow.training import Processes, Trainer, read_recipe
from dicl_flow.training.chain import TARGETS

WARM_UP = 3
TINY = [
    "model.levels=[{ stride = 4, radius = 1, context = [[8, 1]] }]",
    *("model.matcher=dot", "augment.crop=[16,32]", "batch=2", "loss.matched=[0.8]"),
]


def read_stage(name: str, backend: str, *, tiny: bool) -> TrainConfig:
    """Return a published stage, or one that a CPU can rehearse."""
    refined = [] if name == "chairs-0" else ["loss.refined=[1.0]"]
    return read_recipe(name, [f"backend={backend}", *([*TINY, *refined] if tiny else [])])


def random_batch(config: TrainConfig, device: torch.device) -> FlowBatch:
    """Return a batch of noise with small motion, the same for every precision."""
    generator = torch.Generator(device).manual_seed(0)
    height, width = config.augment.crop
    how = {"generator": generator, "device": device}
    images = torch.rand(2, config.batch, 3, height, width, **how)
    flow = 5 * torch.randn(config.batch, 2, height, width, **how)
    return FlowBatch(*images, flow, torch.ones_like(flow[:, 0], dtype=torch.bool))


def measure(
    config: TrainConfig, device: torch.device, steps: int, seconds: float
) -> dict[str, Any]:
    """Return the time and memory of a step."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(config, Processes(device))
    batches = repeat(random_batch(config, device))
    losses = [trainer.train_step(batches, 0.0)["loss"] for _ in range(WARM_UP)]
    times: list[float] = []
    while len(times) < 2 or (len(times) < steps and sum(times) < seconds):
        start = perf_counter()
        trainer.train_step(batches, 0.0)  # waits for the device
        times.append(perf_counter() - start)
    found = {
        "backend": trainer.backend,
        "used": trainer.precision,
        "milliseconds": round(1000 * median(times), 2),
        "steps": len(times),
        "first_loss": losses[0],
    }
    if device.type == "cuda":
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        found["reserved_gib"] = round(torch.cuda.max_memory_reserved() / 2**30, 2)
    return found


def measure_row(
    config: TrainConfig, device: torch.device, steps: int, seconds: float
) -> dict[str, Any]:
    """Return a row, which says so if the stage does not fit in memory."""
    (height, width), precision = config.augment.crop, config.optimizer.precision
    row = {"stage": config.name, "precision": precision, "batch": config.batch}
    row["crop"] = f"{width}x{height}"
    try:
        found = measure(config, device, steps, seconds)
    except torch.OutOfMemoryError:
        found = {"error": "out of memory"}
    gc.collect()  # a recorded step is part of a reference cycle
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return {**row, **found}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", action="append", choices=TARGETS["all"])
    parser.add_argument("--precision", action="append", choices=TRAINING_PRECISIONS)
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument("--batch", type=int, help="pairs of a step; default: the recipe's")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of timed steps, for each row")
    parser.add_argument("--rehearse", action="store_true", help="a tiny run on the CPU")
    parser.add_argument("-o", "--output", type=Path, help="the JSON file")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    tiny = arguments.rehearse
    device = torch.device("cpu" if tiny else "cuda")
    name = device.type if tiny else torch.cuda.get_device_name()
    # float32 last: it takes longest
    default = [p for p in TRAINING_PRECISIONS[::-1] if p != "bf16" or has_bf16(device)]
    about = {"device": name, "torch": torch.__version__, "date": str(date.today())}
    rows: list[dict[str, Any]] = []
    text = ""
    start = perf_counter()
    for stage in arguments.stage or ["chairs-2", "things"]:
        config = read_stage(stage, arguments.backend, tiny=tiny)
        config = replace(config, batch=arguments.batch or config.batch)
        for precision in arguments.precision or default:
            chosen = replace(config, optimizer=replace(config.optimizer, precision=precision))
            print(f"{perf_counter() - start:6.1f} s", stage, precision, file=sys.stderr, flush=True)
            rows.append(measure_row(chosen, device, arguments.steps, arguments.seconds))
            print(f"{perf_counter() - start:6.1f} s", rows[-1], file=sys.stderr, flush=True)
            text = json.dumps({**about, "rows": rows}, indent=1) + "\n"
            if arguments.output:
                arguments.output.write_text(text)
    if not arguments.output:
        print(text, end="")


if __name__ == "__main__":
    main()
