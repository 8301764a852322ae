"""The hosts: networks around a matcher. Each takes finished modules; `build` knows the numbers."""

from collections.abc import Callable

from torch import nn

from ..config import ModelConfig
from .dicl import DiclFlow, LevelFlow, build_dicl

_BUILDERS: dict[str, Callable[[ModelConfig], DiclFlow]] = {"dicl": build_dicl}


def build(config: ModelConfig | None = None) -> DiclFlow:
    """Return a freshly initialised network; without a config, the paper's."""
    config = config or ModelConfig()
    return _BUILDERS[config.host](config)


def count_parameters(model: nn.Module) -> int:
    """How many numbers training can change."""
    return sum(parameter.numel() for parameter in model.parameters())


__all__ = ["DiclFlow", "LevelFlow", "build", "count_parameters"]
