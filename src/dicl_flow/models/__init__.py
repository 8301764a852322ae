"""The hosts: networks around a matcher, built from a `ModelConfig`."""

from collections.abc import Callable

from torch import nn

from ..config import ModelConfig
from ..matching import PAIRWISE_NETS, MatchingNet
from .dicl import OWN_MATCHER, DiclFlow, build_dicl
from .network import FlowNetwork, InitialFlow, LevelFlow
from .pwcnet import PwcNet, build_pwcnet
from .vcn import Vcn, build_vcn

_HOSTS: dict[str, tuple[type[FlowNetwork], Callable[[ModelConfig], FlowNetwork]]] = {
    "dicl": (DiclFlow, build_dicl),
    "pwcnet": (PwcNet, build_pwcnet),
    "vcn": (Vcn, build_vcn),
}


def build(config: ModelConfig | None = None) -> FlowNetwork:
    """Return a network with random weights; without a config, the paper's."""
    config = config or ModelConfig()
    return _HOSTS[config.host][1](config)


def network_type(config: ModelConfig) -> type[FlowNetwork]:
    """What `build` makes of `config`, without making it."""
    return _HOSTS[config.host][0]


def has_matching_net(config: ModelConfig) -> bool:
    """Whether `build` makes the paper's network: its host, and its matching net."""
    net = PAIRWISE_NETS.get(config.matcher or OWN_MATCHER)
    return network_type(config) is DiclFlow and net is MatchingNet


def count_parameters(model: nn.Module, *, inference: bool = False) -> int:
    """The number of trainable parameters; with `inference`, without those only training needs."""
    left_out = getattr(model, "training_only", None) if inference else None
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if left_out is None or left_out not in name
    )


__all__ = [
    "DiclFlow",
    "FlowNetwork",
    "InitialFlow",
    "LevelFlow",
    "build",
    "count_parameters",
    "has_matching_net",
    "network_type",
]
