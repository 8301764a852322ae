"""The hosts: networks around a matcher, built from a `ModelConfig`."""
# ruff: noqa: F401
# mypy: implicit-reexport

from .dicl import DiclFlow  # first: hosts are known in the order in which they are imported
from .network import (
    FlowNetwork,
    InitialFlow,
    LevelFlow,
    build,
    build_empty,
    count_parameters,
    has_matching_net,
    network_type,
)
from .pwcnet import PwcNet
from .radii import own_keys, with_radii
from .vcn import Vcn
