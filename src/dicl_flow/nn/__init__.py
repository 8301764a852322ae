"""The parts that hosts are built from."""

from .blocks import (
    SLOPE,
    ContextNet,
    ConvBlock,
    LeakyBlock,
    apply_in_float32,
    dilated_net,
    initialize,
)
from .pyramid import FeaturePyramid, Merge, PspPyramid
from .volume import SeparableConv, VolumeFilter

__all__ = [
    "SLOPE",
    "ContextNet",
    "ConvBlock",
    "FeaturePyramid",
    "LeakyBlock",
    "Merge",
    "PspPyramid",
    "SeparableConv",
    "VolumeFilter",
    "apply_in_float32",
    "dilated_net",
    "initialize",
]
