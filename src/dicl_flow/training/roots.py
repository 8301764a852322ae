"""The folders of the data sets that a recipe trains on."""

from collections.abc import Mapping
from pathlib import Path

from ..config import TrainConfig
from ..errors import InputError

PROCEDURAL = "procedural"  # --data rendered=procedural: no photographs


def find_root(name: str, roots: Mapping[str, Path]) -> Path:
    """Return the folder of a data set of the recipe; "chairs" includes "chairs:val"."""
    for known in (name, name.partition(":")[0]):
        if known in roots:
            return roots[known]
    place = f"`roots={{'{name.partition(':')[0]}': PATH}}`"
    raise InputError(f"the recipe needs {name!r}: give its folder with {place}")


def check_roots(config: TrainConfig, roots: Mapping[str, Path]) -> None:
    """Refuse missing data before anything is imported or listed."""
    for name in data_names(config):
        root = find_root(name, roots)
        procedural = name == "rendered" and str(root) == PROCEDURAL
        if not (procedural or root.exists()):
            hint = "; without photographs, use 'procedural'" if name == "rendered" else ""
            raise FileNotFoundError(f"no folder {root} for the data set {name!r}{hint}")


def data_names(config: TrainConfig) -> list[str]:
    """Return the data sets that a recipe needs: to train on, then to validate on."""
    validation = config.validation if config.validate_every else ()
    return list(dict.fromkeys([*(entry.name for entry in config.data), *validation]))
