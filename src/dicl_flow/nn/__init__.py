"""The parts every host is built from."""

from .blocks import ConvBlock, initialize
from .context import ContextNet
from .pyramid import FeaturePyramid

__all__ = ["ContextNet", "ConvBlock", "FeaturePyramid", "initialize"]
