"""Recipes by name or path, changes such as `optimizer.learning_rate=1e-4`, and the data needed."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import TrainConfig, read_toml_table, structure
from ..errors import InputError, unknown_name

PROCEDURAL = "procedural"  # --data rendered=procedural: no photographs
_PACKAGED = Path(__file__).parents[1] / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in _PACKAGED.glob("*.toml"))


def read_recipe(name_or_path: str, changes: list[str]) -> TrainConfig:
    """Read a recipe by packaged name or path and apply `key=value` changes."""
    path = _find(name_or_path)
    table = read_toml_table(path)
    for change in changes:
        _apply(table, change)
    try:
        return structure(TrainConfig, table)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


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


def _find(name: str) -> Path:
    if name in recipe_names():
        return _PACKAGED / f"{name}.toml"
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise FileNotFoundError(f"no recipe at {name}")
        return Path(name)
    raise unknown_name("recipe", name, recipe_names())


def _apply(table: dict[str, Any], change: str) -> None:
    """Set `a.b=value`; the value is TOML, or a string without quotes."""
    key, separator, text = change.partition("=")
    if not separator or not key:
        raise InputError(f"a change to a recipe must be key=value, got {change!r}")
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise InputError(f"{change!r}: {parent} is not a table")
    table[last] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
