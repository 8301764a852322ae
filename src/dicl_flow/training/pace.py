"""How long a stage will take on this machine, measured in a few steps."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from ..config import TrainConfig
from .batch_sources import open_source
from .distributed import Processes
from .trainer import Trainer
from .validation import Validation

_STEPS = 8
_SECONDS = 20.0  # enough for the steps; at least two are taken


@dataclass(frozen=True)
class Pace:
    """Seconds that a stage takes, by what takes them."""

    step: float
    validation: float

    def seconds(self, config: TrainConfig, done: int) -> float:
        """Return the time from step `done` to the end."""
        left = config.steps - done
        every = config.validate_every
        validations = ceil(config.steps / every) - done // every if every else 0
        return left * self.step + validations * self.validation


def measure_pace(config: TrainConfig, roots: Mapping[str, Path], processes: Processes) -> Pace:
    """Train a few steps from random weights, and estimate a pair of each validation set."""
    whole = config.batch
    if not processes.on_gpu:  # a step takes minutes, in proportion to its pairs
        few = 2 * processes.world_size * config.optimizer.accumulate
        config = replace(config, batch=min(whole, few))
    trainer = Trainer(config, processes)
    size = processes.share(config.batch, config.optimizer.accumulate)
    batches = open_source(config, roots).batches(size, 0, processes)
    times: list[float] = []
    while len(times) < 2 or (len(times) < _STEPS and processes.any(sum(times) < _SECONDS)):
        start = perf_counter()
        trainer.train_step(batches, 0.0)
        times.append(perf_counter() - start)
    validation = _validation_seconds(trainer, Validation.of(config, roots))
    del trainer, batches
    gc.collect()  # a recorded step is part of a reference cycle
    if processes.on_gpu:
        torch.cuda.empty_cache()
    # the first step includes all start-up
    return Pace(median(times[1:]) * whole / config.batch, validation)


def _validation_seconds(trainer: Trainer, validation: Validation | None) -> float:
    """Return the time of a validation, from the time of one pair per data set and process."""
    seconds = 0.0
    for name, pairs in validation.pairs.items() if validation else ():
        few = Validation({name: pairs[: trainer.processes.world_size]})
        for _ in range(2):  # the first time includes start-up
            start = perf_counter()
            few.errors(trainer.weights(), trainer.processes)
            last = perf_counter() - start
        seconds += last * len(pairs) / len(few.pairs[name])
    return seconds
