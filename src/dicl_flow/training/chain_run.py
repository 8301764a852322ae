"""Training of the stages of a chain, and the time that it takes on this machine."""

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import pace
from .batch_sources import open_source
from .chain import Stage, describe_stage
from .distributed import Processes
from .loop import train
from .start import find_start
from .validation import Validation

Tell = Callable[[str], object]


def describe_chain(
    stages: Sequence[Stage], roots: Mapping[str, Path], processes: Processes, tell: Tell
) -> dict[str, Any]:
    """Return the plan as plain values, with the time of the stages whose data was found."""
    described = []
    for stage in stages:
        plan = describe_stage(stage, roots)
        seconds: float | None = 0.0 if plan["finished"] else None
        if not plan["finished"] and not any(need["problem"] for need in plan["data"]):
            tell(f"measuring the time of {plan['name']}")
            measured = pace.measure_pace(stage.config, roots, processes)
            seconds = measured.seconds(stage.config, plan["steps_done"])
        described.append({**plan, "seconds": seconds})
    known = [plan["seconds"] for plan in described]
    total = None if None in known else sum(known)
    gpu_seconds = total if processes.on_gpu else None
    hours = None if gpu_seconds is None else gpu_seconds * processes.world_size / 3600
    return {"stages": described, "seconds": total, "gpu_hours": hours}


def train_chain(
    stages: Sequence[Stage],
    roots: Mapping[str, Path],
    processes: Processes,
    tell: Tell,
    *,
    quiet: bool = False,
) -> int | None:
    """Train these stages; return the signal that ended it, if any."""
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
        if not outcome.finished:
            return outcome.signal
        if processes.is_first:
            stage.finish({"step": outcome.step, **outcome.validated.best()})
        processes.any(False)  # other processes wait until the next stage can start from this one
        gc.collect()  # a recorded step is part of a reference cycle
    return None
