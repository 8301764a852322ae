"""The variants of an ablation: one recipe with a few changed settings of the model."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config import TrainConfig, to_toml
from ..errors import InputError, unknown_name
from ..files import read_bytes
from ..training import read_recipe
from ..weights import resolve

Settings = Mapping[str, Any]

_METRICS: Mapping[str, Settings] = {
    "dot product": {"host": "dicl", "matcher": "dot", "projection": False},
    "cosine": {"host": "dicl", "matcher": "cosine", "projection": False},
    "MLP": {"host": "dicl", "matcher": "mlp", "projection": False},
    "reduced DICL": {"host": "dicl", "matcher": "reduced", "projection": False},
    "DICL": {"host": "dicl", "matcher": "dicl", "projection": False},
}
STUDIES: Mapping[str, Mapping[str, Settings]] = {
    "metrics": _METRICS,  # the paper's table 3: all without DAP
    "projection": {  # table 2
        "DICL without DAP": {"host": "dicl", "matcher": "dicl", "projection": False},
        "DICL": {"host": "dicl", "matcher": "dicl", "projection": True},
    },
    "hosts": {  # table 4
        "PWC-Net": {"host": "pwcnet", "matcher": None},
        "PWC-Net + DICL": {"host": "pwcnet", "matcher": "dicl"},
        "VCN": {"host": "vcn", "matcher": None},
        "VCN + DICL": {"host": "vcn", "matcher": "dicl"},
    },
    "figures": {  # figures 2 and 4
        **_METRICS,
        "DICL with DAP": {"host": "dicl", "matcher": "dicl", "projection": True},
    },
}
"""By study and variant: the changed settings of the model."""

_CHAIRS = ("chairs-0", "chairs-1", "chairs-2")
PAPER_STAGES: Mapping[str, Sequence[str]] = {
    "metrics": (*_CHAIRS, "things"),
    "projection": (*_CHAIRS, "things"),
    # table 4 has no column after Things; the first phase, without context nets, is that of DICL
    "hosts": ("chairs-1", "chairs-2"),
}
"""By study: the recipes of the paper's stages."""

_IRRELEVANT: Mapping[str, Any] = {
    "name": "",
    "workers": 0,
    "save_every": 1,
    "log_every": 1,
    "picture_every": 0,
}


class Start(NamedTuple):
    """The weights that all variants of a study start from."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Variant:
    """One network of a study, with one seed."""

    name: str
    stages: tuple[TrainConfig, ...]
    """Each starts from the weights of the one before."""
    start: Start | None = None
    """What the first starts from; None: random weights."""

    @property
    def config(self) -> TrainConfig:
        """The last stage."""
        return self.stages[-1]

    @property
    def folder(self) -> str:
        """A folder name that two variants share only if their training is the same."""
        model = self.config.model
        words = [model.host, model.matcher or "own", *["dap"] * model.projection]
        text = "".join(to_toml(replace(stage, **_IRRELEVANT)) for stage in self.stages)
        text += self.start.sha256 if self.start else ""
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{'-'.join(words)}-seed{self.config.seed}-{digest[:8]}"

    @property
    def pairs(self) -> int:
        """The number of training pairs, of all stages together."""
        return sum(stage.steps * stage.batch for stage in self.stages)


def list_variants(
    study: str, base: TrainConfig, seeds: Iterable[int], initial: Path | None = None
) -> list[Variant]:
    """All variants of a study, seed by seed, of one recipe; `initial`: weights to start from."""
    if study not in STUDIES:
        raise unknown_name("study", study, STUDIES)
    if (base.start or base.needs_weights) and initial is None:
        raise InputError(
            f"{base.name!r} is meant to start from trained weights: give `initial=WEIGHTS`; to "
            f"start from random ones: `changes=['start=']` and `changes=['needs_weights=false']`"
        )
    start = None
    if initial is not None:
        start = Start(initial, hashlib.sha256(read_bytes(initial)).hexdigest())
    return [
        Variant(name, (replace(_with_model(base, changes), seed=seed),), start)
        for seed in seeds
        for name, changes in STUDIES[study].items()
    ]


def recipe_variants(
    study: str,
    recipe: str | None,
    changes: list[str],
    pairs: int | None,
    initial: str | None,
    seeds: Iterable[int],
) -> list[Variant]:
    """All variants of a study, of the recipe of that name; default: that of the study.

    `pairs` replaces the number of training pairs. Recipes that freeze parts start from the
    packaged weights if no others are given.
    """
    base = read_recipe(recipe or ("figures" if study == "figures" else "ablation"), changes)
    if pairs is not None:
        base = replace(base, steps=-(-pairs // base.batch))
    shared = initial is not None or base.optimizer.frozen
    return list_variants(study, base, seeds, resolve(initial) if shared else None)


def paper_variants(study: str, changes: list[str], seeds: Iterable[int]) -> list[Variant]:
    """All variants of a study, seed by seed, trained in the paper's stages."""
    if study not in PAPER_STAGES:
        raise unknown_name("study of the paper", study, PAPER_STAGES)
    first, *rest = (read_recipe(name, changes) for name in PAPER_STAGES[study])
    stages = (replace(first, start=""), *rest)
    return [
        Variant(name, tuple(replace(_stage(stage, settings), seed=seed) for stage in stages))
        for seed in seeds
        for name, settings in STUDIES[study].items()
    ]


def _stage(stage: TrainConfig, settings: Settings) -> TrainConfig:
    """The projection is added by the stage that adds it, unless the variant has none."""
    added = {"projection": stage.model.projection} if settings.get("projection") else {}
    return _with_model(stage, {**settings, **added})


def _with_model(base: TrainConfig, changes: Settings) -> TrainConfig:
    moved = base.with_host(changes["host"])
    return replace(moved, model=replace(moved.model, **changes))
