"""Starting a run from the weights of an earlier one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import ModelConfig, TrainConfig
from ..errors import InputError
from ..weights import check_keys, in_parts, packaged_names, read_weights, resolve
from .run_folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from ..models import FlowNetwork

RANDOM = "random"  # recorded for weights without an earlier run
_OPTIONAL = {"projection": [".projection."], "context": [".context.", ".out_of_range."]}
_LEVEL = [
    "levels.{}.",
    "features.up_again.{}.",
    "features.outputs.{}.",
]  # the parameters of one level


def find_start(config: TrainConfig, folder: Path, initial: str | None = None) -> Path | None:
    """Return the weights that a run in `folder` starts from; None: random ones.

    They are `initial`, or those that the stage before has left in its own run folder, the best or
    the last as `start_from` says.
    """
    if initial == RANDOM:
        return None
    if initial is not None:
        return resolve(initial)
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
    weights = read_weights(path)
    fresh = [
        marker.format(stride) for stride in fresh_levels(model.config, path) for marker in _LEVEL
    ]
    fresh += [
        marker
        for part, markers in _OPTIONAL.items()
        if getattr(model.config, part) and not getattr(weights.config, part)
        for marker in markers
    ]
    initial = {
        key: tensor
        for key, tensor in model.state_dict().items()
        if any(marker in key for marker in fresh) or (frozen and not in_parts(key, frozen))
    }
    given = {k: t for k, t in weights.tensors.items() if not frozen or in_parts(k, frozen)}
    tensors = {**initial, **given}
    try:
        check_keys(tensors, model)
    except InputError as error:
        raise InputError(f"cannot start from {path}: {error}") from None
    model.load_state_dict(tensors, strict=True)
    return weights.config


def fresh_levels(config: ModelConfig, path: str | Path) -> tuple[int, ...]:
    """Return the strides of levels that are finer than those of the weights at `path`."""
    finest = read_weights(path).config.strides[-1]
    return tuple(stride for stride in config.strides if stride < finest)


def pairs_behind(path: str | Path) -> int:
    """Number of pairs that the weights at `path` were trained on, including earlier runs."""
    about = read_weights(path).about
    known = about.get("pairs_total", "")
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
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
