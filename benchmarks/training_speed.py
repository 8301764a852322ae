"""The speed and the loss of a recipe, with and without one change of it.

    python benchmarks/training_speed.py PHOTOS                  # accelerated and plain
    python benchmarks/training_speed.py PHOTOS --recipe every-level --set render.sizes=[]
        --change loss.matching=[]                               # what the matching loss adds
    python benchmarks/training_speed.py PHOTOS --recipe every-level --change ""     # one recipe

Both are trained on the same rendered scenes. Then their steps are timed alternately, without
rendering (one batch is repeated) and with it. Prints pairs and megapixels per second, the median
milliseconds per step and those of each turn, then the mean loss of every ten steps. A turn is 12
steps: frames of up to six sizes come equally often. "fused", the backend of the recipes, needs a
GPU.
"""

import argparse
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from dicl_flow.data import FlowBatch
from dicl_flow.training import Processes, Trainer, open_source, read_recipe

TURNS, STEPS = 5, 12


class Run:
    """A trainer, its batches and what was measured."""

    def __init__(self, arguments: argparse.Namespace, changes: list[str], device: str) -> None:
        changes = [f"steps={arguments.steps}", *arguments.set, *changes]
        config, processes = read_recipe(arguments.recipe, changes), Processes(torch.device(device))
        source = open_source(config, {"rendered": arguments.photos})
        self.batches = source.batches(config.batch, 0, processes)
        self.trainer = Trainer(config, processes)
        self.losses = [self._step(self.batches, s / config.steps) for s in range(config.steps)]
        self.alone: list[float] = []
        self.rendered: list[float] = []
        self.pairs = self.pixels = 0  # of a turn with rendering

    def time(self) -> None:
        """Time a turn of each kind."""
        for times, batches in (
            (self.alone, repeat(self.trainer.batch)),
            (self.rendered, self.batches),
        ):
            self.pairs = self.pixels = 0
            start = perf_counter()
            for _ in range(STEPS):
                self._step(batches, 0.5)
                self.pairs += len(self.trainer.batch.flow)
                self.pixels += self.trainer.batch.valid.numel()
            times.append((perf_counter() - start) / STEPS * 1000)

    def _step(self, batches: Iterator[FlowBatch], progress: float) -> float:
        return self.trainer.train_step(batches, progress)["loss"]  # waits for the device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--recipe", default="rendered-0")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for both")
    parser.add_argument("--change", default="backend=plain", help="KEY=VALUE for the second")
    parser.add_argument("--steps", type=int, default=120, help="steps before the timing")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = {arguments.recipe: []}
    if arguments.change:
        names[arguments.change] = [arguments.change]
    runs = {name: Run(arguments, changes, device) for name, changes in names.items()}
    for _ in range(TURNS):
        for run in runs.values():
            run.time()
    for name, run in runs.items():
        seconds = STEPS * median(run.rendered) / 1000
        speed = f"{run.pairs / seconds:.0f} pairs/s, {run.pixels / seconds / 1e6:.1f} megapixels/s"
        print(f"{name}: {speed} with rendering")
        for kind, times in (("without rendering", run.alone), ("with rendering", run.rendered)):
            turns = " ".join(f"{time:.1f}" for time in times)
            print(f"  {kind}: {median(times):.1f} ms per step ({turns})")
    first, *second = (median(run.alone) for run in runs.values())
    if second:
        print(f"without rendering, the first takes {first / second[0]:.3f} times as long")
    for start in range(0, arguments.steps, 10):
        parts = [run.losses[start : start + 10] for run in runs.values()]
        means = "  ".join(f"{sum(part) / len(part):.2f}" for part in parts)
        print(f"loss from step {start}: {means}")


if __name__ == "__main__":
    main()
