"""The hosts: networks around a matcher, built from a `ModelConfig`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from ..config import ModelConfig
from .blocks import initialize
from .dicl import OWN_MATCHER, DiclFlow, assemble_dicl
from .matching import PAIRWISE_NETS, MatchingNet
from .network import FlowNetwork, InitialFlow, LevelFlow
from .pwcnet import PwcNet, assemble_pwcnet, initialize_pwcnet
from .vcn import Vcn, assemble_vcn


class _Host(NamedTuple):
    kind: type[FlowNetwork]
    assemble: Callable[[ModelConfig], FlowNetwork]
    initialize: Callable[[nn.Module], None]


_HOSTS = {
    "dicl": _Host(DiclFlow, assemble_dicl, initialize),
    "pwcnet": _Host(PwcNet, assemble_pwcnet, initialize_pwcnet),
    "vcn": _Host(Vcn, assemble_vcn, initialize),
}


def build(config: ModelConfig | None = None) -> FlowNetwork:
    """Return a network with random weights; without a config, the paper's."""
    config = config or ModelConfig()
    host = _HOSTS[config.host]
    model = host.assemble(config)
    host.initialize(model)
    return model


def build_empty(config: ModelConfig) -> FlowNetwork:
    """Return the same network without values or memory: for weights that are assigned to it.

    Drawing random numbers would take longer than reading weights.
    """
    with torch.device("meta"):
        return _HOSTS[config.host].assemble(config)


def network_type(config: ModelConfig) -> type[FlowNetwork]:
    """What `build` makes of `config`, without making it."""
    return _HOSTS[config.host].kind


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
    "build_empty",
    "count_parameters",
    "has_matching_net",
    "network_type",
]
