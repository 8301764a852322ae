"""The published stages, each from the weights of the one before: for `reproduce` and `ablate`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..data import list_pairs
from ..errors import InputError, unknown_name
from ..files import write_files
from .recipe import data_names, find_root, read_recipe
from .run_folder import RunFolder, load_checkpoint

_CHAIRS = ("chairs-0", "chairs-1", "chairs-2")
TARGETS = {
    "chairs": _CHAIRS,
    "things": (*_CHAIRS, "things"),
    "sintel": (*_CHAIRS, "things", "sintel"),
    "kitti": (*_CHAIRS, "things", "kitti"),
    "all": (*_CHAIRS, "things", "sintel", "kitti"),
}
"""By what is reproduced: its stages, in order; each is the recipe of that name."""


@dataclass(frozen=True)
class DataNeed:
    """A data set that a stage needs."""

    name: str
    root: str | None
    pairs: int | None
    problem: str | None
    """Why it cannot be used; None: it was found."""


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
        return json.loads(self._record.read_text()) if self._record.is_file() else None

    def finish(self, record: Mapping[str, Any]) -> None:
        """Record that the stage has finished, and with what."""
        write_files({self._record: (json.dumps(record) + "\n").encode()}, durable=True)

    def steps_done(self) -> int:
        """Return the number of steps that are in the checkpoint."""
        if self.finished:
            return self.config.steps
        checkpoint = self.folder.checkpoint
        return int(load_checkpoint(checkpoint)["step"]) if checkpoint.is_file() else 0

    def needs(self, roots: Mapping[str, Path]) -> list[DataNeed]:
        """Return the data that is still needed."""
        return [] if self.finished else [_look(name, roots) for name in data_names(self.config)]


def read_stages(names: Sequence[str], changes: Sequence[str]) -> tuple[TrainConfig, ...]:
    """Read published stages; one whose earlier stage is not among them starts from random weights.

    A change is `key=value` for all stages, or `STAGE:key=value` for one.
    """
    stages = [read_recipe(name, _changes_for(name, changes)) for name in names]
    known = {stage.name for stage in stages}
    return tuple(s if s.start in known else replace(s, start="") for s in stages)


def open_stages(configs: Sequence[TrainConfig], folder: Path) -> list[Stage]:
    """Return the stages of a chain; refuse a folder in which they have other settings."""
    stages = [Stage(config, folder) for config in configs]
    for stage in stages:
        if stage.folder.config.is_file():
            begun = stage.folder.config.read_text(encoding="utf-8")
            stage.folder.check_settings(begun, stage.config)
    return stages


def plan_chain(
    target: str, folder: Path, changes: Sequence[str], *, without_projection: bool = False
) -> list[Stage]:
    """Return the stages of a target, with `changes` as for `read_stages`."""
    if target not in TARGETS:
        raise unknown_name("target", target, TARGETS)
    bare = ["model.projection=false"] if without_projection else []
    return open_stages(read_stages(TARGETS[target], [*changes, *bare]), folder)


def check_needs(stages: Sequence[Stage], roots: Mapping[str, Path]) -> None:
    """Refuse to start a chain for which data is missing; all of it is named."""
    needs = {need for stage in stages for need in stage.needs(roots) if need.problem}
    if needs:
        raise InputError("; ".join(sorted(f"{need.name}: {need.problem}" for need in needs)))


def describe_stage(stage: Stage, roots: Mapping[str, Path]) -> dict[str, Any]:
    """Return the plan of a stage as plain values."""
    config = stage.config
    return {
        "name": config.name,
        "finished": bool(stage.finished),
        "steps": config.steps,
        "steps_done": stage.steps_done(),
        "batch": config.batch,
        "pairs": config.steps * config.batch,
        "data": [asdict(need) for need in stage.needs(roots)],
        "start": config.start,
        "start_from": config.start_from,
        "optimizer": asdict(config.optimizer),
        "schedule": asdict(config.schedule),
    }


def _changes_for(stage: str, changes: Sequence[str]) -> list[str]:
    chosen = []
    for change in changes:
        name, colon, _ = change.partition("=")[0].partition(":")
        if colon and name not in TARGETS["all"]:
            raise unknown_name("stage", name, TARGETS["all"])
        if not colon:
            chosen.append(change)
        elif name == stage:
            chosen.append(change.removeprefix(f"{name}:"))
    return chosen


def _look(name: str, roots: Mapping[str, Path]) -> DataNeed:
    try:
        root = find_root(name, roots)
    except InputError as error:
        return DataNeed(name, None, None, str(error))
    try:
        return DataNeed(name, str(root), len(list_pairs(name, root, needs_truth=True)), None)
    except (InputError, OSError) as error:
        return DataNeed(name, str(root), None, str(error))
