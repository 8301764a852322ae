"""The variants of an ablation: one recipe with a few changed settings of the model."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config import TrainConfig, to_toml
from ..errors import InputError, unknown_name

STUDIES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "metrics": {  # the paper's table 3: all without DAP
        "dot product": {"host": "dicl", "matcher": "dot", "projection": False},
        "cosine": {"host": "dicl", "matcher": "cosine", "projection": False},
        "MLP": {"host": "dicl", "matcher": "mlp", "projection": False},
        "reduced DICL": {"host": "dicl", "matcher": "reduced", "projection": False},
        "DICL": {"host": "dicl", "matcher": "dicl", "projection": False},
    },
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
}
"""By study and variant: the changed settings of the model."""

_IRRELEVANT: Mapping[str, Any] = {
    "name": "",
    "workers": 0,
    "save_every": 1,
    "log_every": 1,
    "picture_every": 0,
}


@dataclass(frozen=True)
class Variant:
    """One network of a study, with one seed."""

    name: str
    config: TrainConfig

    @property
    def folder(self) -> str:
        """A folder name that two variants share only if their training is the same."""
        model = self.config.model
        words = [model.host, model.matcher or "own", *["dap"] * model.projection]
        digest = hashlib.sha256(to_toml(replace(self.config, **_IRRELEVANT)).encode()).hexdigest()
        return f"{'-'.join(words)}-seed{self.config.seed}-{digest[:8]}"

    @property
    def pairs(self) -> int:
        """The number of training pairs."""
        return self.config.steps * self.config.batch


def list_variants(study: str, base: TrainConfig, seeds: Iterable[int]) -> list[Variant]:
    """All variants of a study, seed by seed; each starts from random weights."""
    if study not in STUDIES:
        raise unknown_name("study", study, STUDIES)
    if base.start or base.needs_weights:
        raise InputError(
            f"{base.name!r} is meant to start from trained weights, which the variants of a study "
            f"cannot share; to start them from random ones: `changes=['start=']` and "
            f"`changes=['needs_weights=false']`"
        )
    return [
        Variant(name, replace(_with_model(base, changes), seed=seed))
        for seed in seeds
        for name, changes in STUDIES[study].items()
    ]


def _with_model(base: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    moved = base.with_host(changes["host"])
    return replace(moved, model=replace(moved.model, **changes))
