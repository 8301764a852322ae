"""The published stages, each from the weights of the one before; planning them needs no torch."""

import gc
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..config import TrainConfig
from ..data import list_pairs
from ..errors import InputError, check_name, refusing
from ..files import write_files
from .recipe import data_names, find_root, find_start, read_recipe
from .run_folder import RunFolder, load_checkpoint

if TYPE_CHECKING:
    from .distributed import Processes
    from .trainer import Trainer

_CHAIRS = ("chairs-0", "chairs-1", "chairs-2")
TARGETS = {
    "chairs": _CHAIRS,
    "things": (*_CHAIRS, "things"),
    "sintel": (*_CHAIRS, "things", "sintel"),
    "kitti": (*_CHAIRS, "things", "kitti"),
    "all": (*_CHAIRS, "things", "sintel", "kitti"),
}
"""By what is reproduced: its stages, in order; each is the recipe of that name."""
_STEPS, _SECONDS = 8, 20.0  # enough to measure a pace; at least two steps are taken


class Stage:
    """One stage of the chain and its run folder."""

    def __init__(self, config: TrainConfig, chain: Path) -> None:
        self.config = config
        self.folder = RunFolder(chain / config.name)
        self._record = self.folder.path / "finished.json"

    @property
    def weights(self) -> Path:
        """The weights that the stage has left for the next, or as the result."""
        return self.folder.chosen(self.config.start_from)

    @property
    def finished(self) -> dict[str, Any] | None:
        """What `finish` has recorded, if the stage has finished."""
        if not self._record.is_file():
            return None
        with refusing(f"{self._record} is damaged; remove it and run the stage again", ValueError):
            return json.loads(self._record.read_text())

    def finish(self, record: Mapping[str, Any]) -> None:
        """Record that the stage has finished, and with what."""
        write_files({self._record: (json.dumps(record) + "\n").encode()}, durable=True)

    def needs(self, roots: Mapping[str, Path]) -> list[dict[str, Any]]:
        """Return name, root, number of pairs and problem (if any) of the data still needed."""
        return [] if self.finished else [_look(name, roots) for name in data_names(self.config)]

    def plan(self, roots: Mapping[str, Path]) -> dict[str, Any]:
        """Return what is to be done, as plain values."""
        config, checkpoint, done = self.config, self.folder.checkpoint, 0
        if self.finished:
            done = config.steps
        elif checkpoint.is_file():
            done = int(load_checkpoint(checkpoint)["step"])
        return {
            "name": config.name,
            "finished": bool(self.finished),
            "steps": config.steps,
            "steps_done": done,
            "batch": config.batch,
            "pairs": config.steps * config.batch,
            "data": self.needs(roots),
            "start": config.start,
            "start_from": config.start_from,
            "optimizer": asdict(config.optimizer),
            "schedule": asdict(config.schedule),
        }


def _look(name: str, roots: Mapping[str, Path]) -> dict[str, Any]:
    need: dict[str, Any] = {"name": name, "root": None, "pairs": None, "problem": None}
    try:
        root = find_root(name, roots)
        need["root"] = str(root)
        need["pairs"] = len(list_pairs(name, root, needs_truth=True))
    except (InputError, OSError) as error:
        need["problem"] = str(error)
    return need


def read_stages(names: Sequence[str], changes: Sequence[str]) -> tuple[TrainConfig, ...]:
    """Read published stages; one whose earlier stage is not among them starts from random weights.

    A change is `key=value` for all stages, or `STAGE:key=value` for one.
    """
    stages = [read_recipe(name, _changes_for(name, changes)) for name in names]
    known = {stage.name for stage in stages}
    return tuple(s if s.start in known else replace(s, start="") for s in stages)


def _changes_for(stage: str, changes: Sequence[str]) -> list[str]:
    chosen = []
    for change in changes:
        name, colon, _ = change.partition("=")[0].partition(":")
        if colon:
            check_name("stage", name, TARGETS["all"])
        if not colon or name == stage:
            chosen.append(change.removeprefix(f"{stage}:"))
    return chosen


def open_stages(configs: Sequence[TrainConfig], folder: Path) -> list[Stage]:
    """Return the stages of a chain; refuse a folder in which they have other settings."""
    stages = [Stage(config, folder) for config in configs]
    for stage in stages:
        if (begun := stage.folder.config).is_file():
            with refusing(f"{begun} is damaged; use another folder", ValueError):
                stage.folder.check_settings(begun.read_text(encoding="utf-8"), stage.config)
    return stages


def plan_chain(
    target: str, folder: Path, changes: Sequence[str], *, without_projection: bool = False
) -> list[Stage]:
    """Return the stages of a target, with `changes` as for `read_stages`."""
    check_name("target", target, TARGETS)
    bare = ["model.projection=false"] if without_projection else []
    return open_stages(read_stages(TARGETS[target], [*changes, *bare]), folder)


def check_needs(stages: Sequence[Stage], roots: Mapping[str, Path]) -> None:
    """Refuse to start a chain for which data is missing; all of it is named."""
    needs = [need for stage in stages for need in stage.needs(roots) if need["problem"]]
    if needs:
        raise InputError(
            "; ".join(sorted({f"{need['name']}: {need['problem']}" for need in needs}))
        )


@dataclass(frozen=True)
class Pace:
    """Seconds that a stage takes, by what takes them."""

    step: float
    validation: float

    def seconds(self, config: TrainConfig, done: int) -> float:
        """Return the time from step `done` to the end."""
        every = config.validate_every
        validations = ceil(config.steps / every) - done // every if every else 0
        return (config.steps - done) * self.step + validations * self.validation


def measure_pace(config: TrainConfig, roots: Mapping[str, Path], processes: "Processes") -> Pace:
    """Train a few steps from random weights, and estimate a pair of each validation set."""
    import torch

    from .batch_sources import open_source
    from .trainer import Trainer

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
    validation = _validation_seconds(trainer, roots)
    del trainer, batches
    gc.collect()  # a recorded step is part of a reference cycle
    if processes.on_gpu:
        torch.cuda.empty_cache()
    # the first step includes all start-up
    return Pace(median(times[1:]) * whole / config.batch, validation)


def _validation_seconds(trainer: "Trainer", roots: Mapping[str, Path]) -> float:
    """Return the time of a validation, from the time of one pair per data set and process."""
    from .monitoring import Validation

    seconds, validation = 0.0, Validation.of(trainer.config, roots)
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
    processes: "Processes",
    tell: Callable[[str], object],
    measured: dict[TrainConfig, Pace] | None = None,
) -> dict[str, Any]:
    """Return the plan as plain values, with the time of the stages whose data was found.

    In `measured`, stages that differ in the seed alone share a pace.
    """
    described = []
    measured = {} if measured is None else measured
    for stage in stages:
        plan = stage.plan(roots)
        seconds: float | None = 0.0 if plan["finished"] else None
        if not plan["finished"] and not any(need["problem"] for need in plan["data"]):
            known = replace(stage.config, seed=0)
            if known not in measured:
                tell(f"measuring the time of {plan['name']}")
                measured[known] = measure_pace(stage.config, roots, processes)
            seconds = measured[known].seconds(stage.config, plan["steps_done"])
        described.append({**plan, "seconds": seconds})
    return {"stages": described, **total_cost(described, processes)}


def total_cost(
    plans: Sequence[Mapping[str, Any]], processes: "Processes"
) -> dict[str, float | None]:
    """Return the seconds of these plans together, and the GPU-hours; None: not known."""
    known = [plan["seconds"] for plan in plans]
    total = None if None in known else sum(known)
    hours = None if total is None or not processes.on_gpu else total * processes.world_size / 3600
    return {"seconds": total, "gpu_hours": hours}


def train_chain(
    stages: Sequence[Stage],
    roots: Mapping[str, Path],
    processes: "Processes",
    tell: Callable[[str], object],
    *,
    quiet: bool = False,
) -> int | None:
    """Train these stages; return the signal that ended it, if any: in all processes or in none."""
    from .batch_sources import open_source
    from .loop import train
    from .monitoring import Validation

    for stage in stages:
        config, folder = stage.config, stage.folder
        tell(f"{config.name}: {folder.path}")
        outcome = train(
            config,
            open_source(config, roots),
            folder,
            processes,
            initial=None if folder.checkpoint.is_file() else find_start(config, folder.path),
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
