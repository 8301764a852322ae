"""Accelerated matching for training on GPUs; `accelerate` replaces the modules of a network."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...matching import MatchingNet, PairwiseMatcher
from ...models.dicl import DiclLevel
from ...nn import ConvBlock, Merge
from .convolutions import AcceleratedConvBlock, ChannelsLastConv3d, ImageConv2d
from .modules import AcceleratedDiclLevel, AcceleratedMerge

_Model = TypeVar("_Model", bound=nn.Module)
_FEWEST_CHANNELS = 8
_MOST_CHANNELS = 64  # for kernels that hold all channels of a tile at once


class AcceleratedPairwiseMatcher(PairwiseMatcher):
    """A `PairwiseMatcher` whose pairs are written by one kernel; for a `MatchingNet`, by none."""

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        if type(self.net) is not MatchingNet:
            return super().forward(features1, features2)
        from ..kernels.pair_layer import pair_layer, pair_norm_relu

        first = self.net.first
        assert isinstance(first, AcceleratedConvBlock)
        weight = first.conv.weight
        assert isinstance(weight, Tensor)
        given1, given2 = _channels_last(features1, features2)
        norm = first.norm_of_batch()
        if norm is None:
            score = first.finish(pair_layer(given1, given2, weight, self.radius))
        else:
            score = pair_norm_relu(given1, given2, weight, self.radius, *norm)
        for layer in list(self.net)[1:]:
            score = layer(score)
        batch, _, height, width = features1.shape
        side = 2 * self.radius + 1
        score = score[..., :height, :width].unflatten(0, (side, side, batch))
        return score.permute(2, 3, 0, 1, 4, 5)

    def pairs(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> the input of the net: (B·U·V, 2C, H, W)."""
        from ..kernels.pair_windows import pair_windows

        return pair_windows(*_channels_last(features1, features2), self.radius)


def _channels_last(features1: Tensor, features2: Tensor) -> tuple[Tensor, Tensor]:
    """Both maps in the order of the kernels: a warp leaves its result channels first."""
    order = torch.channels_last
    return features1.contiguous(memory_format=order), features2.contiguous(memory_format=order)


class WideConv2d(nn.Conv2d):
    """A convolution to very few channels, computed with unused channels added.

    cuDNN's tensor-core kernels need at least eight channels; with fewer, its backward pass uses
    one that takes many times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H, W)."""
        idle = _FEWEST_CHANNELS - self.out_channels
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, 0, 0, idle))
        bias = None if self.bias is None else F.pad(self.bias, (0, idle))
        return F.conv2d(x, weight, bias, padding=self.padding)[:, : self.out_channels]


class ScoreConv2d(nn.Conv2d):
    """A 3x3 convolution to one channel, at the size of its input, as two kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, 1, H, W)."""
        from ..kernels.last_layer import last_layer

        assert self.bias is not None
        return last_layer(x.contiguous(memory_format=torch.channels_last), self.weight, self.bias)


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
    found = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
    narrow = max(layer.in_channels, layer.out_channels) <= _MOST_CHANNELS
    usual = narrow and found == ((3, 3), (1, 1), (1, 1), (1, 1), 1)
    if layer.out_channels < _FEWEST_CHANNELS:
        gives_scores = usual and layer.out_channels == 1 and layer.bias is not None
        return ScoreConv2d if gives_scores else WideConv2d
    return ImageConv2d if usual and layer.in_channels == 3 and layer.bias is None else nn.Conv2d
