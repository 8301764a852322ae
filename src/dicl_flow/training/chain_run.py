"""Training of the stages of a chain, and the time that it takes on this machine."""

import gc
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from . import pace
from .batch_sources import open_source
from .chain import Stage, describe_stage
from .distributed import Processes
from .loop import train
from .start import find_start
from .validation import Validation

Tell = Callable[[str], object]


def describe_chain(
    stages: Sequence[Stage],
    roots: Mapping[str, Path],
    processes: Processes,
    tell: Tell,
    measured: dict[TrainConfig, pace.Pace] | None = None,
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
                measured[known] = pace.measure_pace(stage.config, roots, processes)
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
