"""The command `info`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from ..weights import Weights


def info(
    weights: Annotated[
        str | None, typer.Argument(help="Packaged name or .safetensors file.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Describe a weights file (config, parameters, metrics, hash), or this installation.

    Examples:

      dicl-flow info

      dicl-flow info my.safetensors --json
    """
    values = _installation() if weights is None else _weights(weights)
    options.report(values, quiet=False, as_json=as_json)


def _installation() -> dict[str, Any]:
    import torch

    from .._version import __version__
    from ..config import ModelConfig
    from ..estimation.compute import choose_compute
    from ..weights import packaged_names

    choices = choose_compute(ModelConfig()).choices()
    return {
        "dicl_flow": __version__,
        "torch": torch.__version__,
        **{
            key: text
            for name, (value, reason) in choices.items()
            for key, text in ((name, value), (f"{name}_because", reason))
        },
        "threads": torch.get_num_threads(),
        "packaged_weights": ", ".join(packaged_names()) or "none",
    }


def _calibrated(weights: "Weights") -> list[str]:
    """Return the names of the qualities that the weights are calibrated for."""
    from ..config import NORMAL

    normal = [NORMAL] if weights.calibration else []
    return [*normal, *weights.quality_calibrations]


def _weights(name: str) -> dict[str, Any]:
    from ..weights import load_model, read_weights, resolve

    path = resolve(name)
    weights = read_weights(path)

    from ..estimation.confidence import UNCALIBRATED
    from ..models import count_parameters

    config, model = weights.config, load_model(weights)
    return {
        "file": str(path),
        "sha256": weights.sha256,
        "host": config.host,
        "matcher": config.matcher or "the host's own",
        "projection": config.projection,
        "context": config.context,
        "padding": config.padding,
        "max_pixels": config.max_pixels or "any number",
        "multiple": config.pad_multiple,
        "levels": ", ".join(f"1/{level.stride} (radius {level.radius})" for level in config.levels),
        "reach": f"{config.reach[-1]} px per axis",
        "confidence": weights.calibration.meaning
        if weights.calibration
        else f"uncalibrated: {UNCALIBRATED}",
        "calibrated_for": ", ".join(_calibrated(weights)) or "no quality",
        "parameters": count_parameters(model),
        "of_them_at_inference": count_parameters(model, inference=True),
        **weights.about,
    }
