"""Recipes by name or path, the data they need, and the weights of an earlier run to start from."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ModelConfig, TrainConfig, read_toml_table, structure
from ..errors import InputError, refusing, unknown_name
from ..weights import check_keys, in_parts, packaged_names, read_weights, resolve
from .run_folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from ..models import FlowNetwork

PROCEDURAL = "procedural"  # --data rendered=procedural: no photographs
RANDOM = "random"  # recorded for weights without an earlier run
_PACKAGED = Path(__file__).parents[1] / "recipes"
_OPTIONAL = {"projection": [".projection."], "context": [".context.", ".out_of_range."]}
_LEVEL = ("levels.{}.", "features.up_again.{}.", "features.outputs.{}.")  # parameters of one level


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in _PACKAGED.glob("*.toml"))


def read_recipe(
    name_or_path: str, changes: Sequence[str], model: ModelConfig | None = None
) -> TrainConfig:
    """Read a recipe and apply changes such as `optimizer.learning_rate=1e-4`.

    `model` takes the place of the recipe's network.
    """
    path = _find(name_or_path)
    table = read_toml_table(path)
    if model is not None:
        table["model"] = json.loads(model.to_json())
    for change in changes:
        parse_change(table, change)
    with refusing(path.name, InputError):
        return structure(TrainConfig, table)


def _find(name: str) -> Path:
    if name in recipe_names():
        return _PACKAGED / f"{name}.toml"
    if not name.endswith(".toml"):
        raise unknown_name("recipe", name, recipe_names())
    if not Path(name).is_file():
        raise FileNotFoundError(f"no recipe at {name}")
    return Path(name)


def parse_change(table: dict[str, Any], change: str) -> None:
    """Set `a.b=value`; the value is TOML, or a string without quotes."""
    key, separator, text = change.partition("=")
    if not separator or not key:
        raise InputError(f"a change to a recipe must be key=value, got {change!r}")
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise InputError(f"{change!r}: {parent} is not a table")
    try:
        table[last] = tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        table[last] = text.strip()


def find_root(name: str, roots: Mapping[str, Path]) -> Path:
    """Return the folder of a data set of the recipe; "chairs" includes "chairs:val"."""
    family = name.partition(":")[0]
    root = roots.get(name, roots.get(family))
    if root is None:
        place = f"`roots={{'{family}': PATH}}`"
        raise InputError(f"the recipe needs {name!r}: give its folder with {place}")
    return root


def check_roots(config: TrainConfig, roots: Mapping[str, Path]) -> None:
    """Refuse missing data before anything is imported or listed."""
    for name in data_names(config):
        root, rendered = find_root(name, roots), name == "rendered"
        if not (root.exists() or (rendered and str(root) == PROCEDURAL)):
            hint = "; without photographs, use 'procedural'" if rendered else ""
            raise FileNotFoundError(f"no folder {root} for the data set {name!r}{hint}")


def data_names(config: TrainConfig) -> list[str]:
    """Return the data sets that a recipe needs: to train on, then to validate on."""
    validation = config.validation if config.validate_every else ()
    return list(dict.fromkeys([*(entry.name for entry in config.data), *validation]))


def find_start(config: TrainConfig, folder: Path, initial: str | None = None) -> Path | None:
    """Return the weights that a run in `folder` starts from; None: random ones.

    They are `initial`, or those that the stage before has left in its own run folder.
    """
    if initial == RANDOM and config.radii:
        raise InputError(
            f"{config.name!r} adds parts for quality {config.quality!r} to trained weights: give "
            f"`initial=WEIGHTS` (the packaged ones: `initial='rendered'`)"
        )
    if initial is not None:
        return None if initial == RANDOM else resolve(initial)
    if config.needs_weights:
        raise InputError(
            f"{config.name!r} is meant to start from trained weights: give `initial=WEIGHTS` (the "
            f"packaged ones: `initial='rendered'`), or `initial='random'` to start from none"
        )
    if not config.start:
        return None
    path = RunFolder(folder.parent / config.start).chosen(config.start_from)
    if not path.is_file():
        raise InputError(
            f"this stage starts from {config.start!r}, but there is no {path}; train that first, "
            f"or give `initial=WEIGHTS` or `initial='random'`"
        )
    return path


def start_from(model: "FlowNetwork", path: str | Path, frozen: Sequence[str] = ()) -> ModelConfig:
    """Fill `model` with the weights of an earlier stage; return that stage's config.

    Parts that the earlier stage did not have (projection, context nets, finer levels) keep their
    initial values; all other weights must be present and fit. If parts are `frozen`, only they are
    filled in.
    """
    weights, config = read_weights(path), model.config
    fresh = [part.format(stride) for stride in fresh_levels(config, path) for part in _LEVEL]
    for part, markers in _OPTIONAL.items():
        if getattr(config, part) and not getattr(weights.config, part):
            fresh += markers
    tensors = {
        key: tensor
        for key, tensor in model.state_dict().items()
        if any(marker in key for marker in fresh) or (frozen and not in_parts(key, frozen))
    }
    tensors |= {k: t for k, t in weights.tensors.items() if not frozen or in_parts(k, frozen)}
    with refusing(f"cannot start from {path}", InputError):
        check_keys(tensors, model)
    model.load_state_dict(tensors, strict=True)
    return weights.config


def fresh_levels(config: ModelConfig, path: str | Path) -> tuple[int, ...]:
    """Return the strides of levels that are finer than those of the weights at `path`."""
    finest = read_weights(path).config.strides[-1]
    return tuple(stride for stride in config.strides if stride < finest)


def pairs_behind(path: str | Path) -> int:
    """Number of pairs that the weights at `path` were trained on, including earlier runs."""
    known = read_weights(path).about.get("pairs_total", "")
    return int(known) if known.isdecimal() else 0


def origin(path: str | Path) -> str:
    """Return the name and the hash of the weights that a run starts from, to be recorded.

    Of a path only the last folder and the file name are kept; the rest may be private.
    """
    path = Path(path)
    packaged = path.stem in packaged_names() and path == resolve(path.stem)
    name = path.stem if packaged else "/".join(path.absolute().parts[-2:])
    return f"{name}, sha256 {read_weights(path).sha256[:12]}"


def freeze_parts(model: "nn.Module", parts: Sequence[str]) -> None:
    """Keep the parameters and batch norm statistics of these parts fixed."""
    for name, module in model.named_modules():
        if in_parts(f"{name}.", parts):
            module.eval().requires_grad_(False)


def freeze_norms(model: "nn.Module") -> None:
    """Keep the batch norm statistics fixed."""
    from torch.nn.modules.batchnorm import _BatchNorm

    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
