"""The accelerated network for training on a GPU: backend "fused"."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from ..models.blocks import ConvBlock
from ..models.dicl import DiclLevel, Merge
from ..models.matching import PairwiseMatcher
from .batch_norm import AcceleratedConvBlock
from .first_layer.training import AcceleratedPairwiseMatcher
from .merge import AcceleratedMerge
from .readout import AcceleratedDiclLevel
from .score_layers import FEWEST_CHANNELS, ScoreConv2d, WideConv2d
from .stem import ImageConv2d

_Model = TypeVar("_Model", bound=nn.Module)
_MOST_CHANNELS = 64  # for kernels that hold all channels of a tile at once


class ChannelsLastConv3d(nn.Conv3d):
    """A filter of volumes whose result is always channels last, even of one channel.

    Otherwise norms of few channels run in few blocks, and cuDNN uses no tensor cores.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, D, H, W) -> (B, out, D', H', W')."""
        return super().forward(x).contiguous(memory_format=torch.channels_last_3d)


_ACCELERATED: dict[type[nn.Module], type[nn.Module]] = {
    ConvBlock: AcceleratedConvBlock,
    Merge: AcceleratedMerge,
    DiclLevel: AcceleratedDiclLevel,
    nn.Conv3d: ChannelsLastConv3d,
    PairwiseMatcher: AcceleratedPairwiseMatcher,
}


def accelerate(model: _Model) -> _Model:
    """Replace the modules of `model` by accelerated ones, in place; its weights are channels last.

    Parameters, buffers and state-dict keys stay as they are: the plain network can load them.
    """
    for module in model.modules():
        module.__class__ = _ACCELERATED.get(type(module), type(module))
        if type(module) is nn.Conv2d:
            module.__class__ = _class_of(module)
    orders = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in model.parameters():
        if parameter.ndim in orders:
            parameter.data = parameter.data.to(memory_format=orders[parameter.ndim])
    return model


def _class_of(layer: nn.Conv2d) -> type[nn.Conv2d]:
    """The class that computes the same as this layer, but faster, or its own."""
    geometry = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
    narrow = max(layer.in_channels, layer.out_channels) <= _MOST_CHANNELS
    usual = narrow and geometry == ((3, 3), (1, 1), (1, 1), (1, 1), 1)
    if layer.out_channels < FEWEST_CHANNELS:
        gives_scores = usual and layer.out_channels == 1 and layer.bias is not None
        return ScoreConv2d if gives_scores else WideConv2d
    return ImageConv2d if usual and layer.in_channels == 3 and layer.bias is None else nn.Conv2d
