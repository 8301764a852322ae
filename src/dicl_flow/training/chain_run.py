"""Training of the stages of a chain, and the time that it takes on this machine."""

import gc
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ..config import TrainConfig
from .batch_sources import open_source
from .chain import Stage, describe_stage
from .distributed import Processes
from .loop import train
from .start import find_start
from .trainer import Trainer
from .validation import Validation

Tell = Callable[[str], object]
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


def describe_chain(
    stages: Sequence[Stage],
    roots: Mapping[str, Path],
    processes: Processes,
    tell: Tell,
    measured: dict[TrainConfig, Pace] | None = None,
) -> dict[str, Any]:
    """Return the plan as plain values, with the time of the stages whose data was found.

    `measured` keeps the pace of stages, so that those that differ in the seed alone share it.
    """
    described = []
    measured = {} if measured is None else measured
    for stage in stages:
        plan = describe_stage(stage, roots)
        seconds: float | None = 0.0 if plan["finished"] else None
        if not plan["finished"] and not any(need["problem"] for need in plan["data"]):
            known = replace(stage.config, seed=0)
            if known not in measured:
                tell(f"measuring the time of {plan['name']}")
                measured[known] = measure_pace(stage.config, roots, processes)
            seconds = measured[known].seconds(stage.config, plan["steps_done"])
        described.append({**plan, "seconds": seconds})
    return {"stages": described, **total_cost(described, processes)}


def total_cost(plans: Sequence[Mapping[str, Any]], processes: Processes) -> dict[str, float | None]:
    """Return the seconds of these plans together, and the GPU-hours; None: not known."""
    known = [plan["seconds"] for plan in plans]
    total = None if None in known else sum(known)
    gpu_seconds = total if processes.on_gpu else None
    hours = None if gpu_seconds is None else gpu_seconds * processes.world_size / 3600
    return {"seconds": total, "gpu_hours": hours}


def train_chain(
    stages: Sequence[Stage],
    roots: Mapping[str, Path],
    processes: Processes,
    tell: Tell,
    *,
    quiet: bool = False,
) -> int | None:
    """Train these stages; return the signal that ended it, if any.

    All processes return one, also if only another one received it.
    """
    for stage in stages:
        config = stage.config
        tell(f"{config.name}: {stage.folder.path}")
        begun = stage.folder.checkpoint.is_file()
        outcome = train(
            config,
            open_source(config, roots),
            stage.folder,
            processes,
            initial=None if begun else find_start(config, stage.folder.path),
            resume=True,
            validation=Validation.of(config, roots),
            quiet=quiet,
        )
        gc.collect()  # a recorded step is part of a reference cycle
        if outcome.finished and processes.is_first:
            stage.finish({"step": outcome.step, **outcome.validated.best()})
        # other processes wait here until the next stage can start from this one
        if processes.any(outcome.signal is not None):
            return outcome.signal or signal.SIGTERM
    return None
