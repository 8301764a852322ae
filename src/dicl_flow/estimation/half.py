"""A network whose convolutions compute in float16: for exports, on any machine that runs them.

Flows, positions, the readout of scores, entropy and confidence stay float32, and so do the layers
that make scores of features: a softmax turns their last digits into motion.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from ..accelerated.folded import fold
from ..errors import InputError
from ..models import DiclFlow, FlowNetwork
from ..models.blocks import ConvBlock
from ..models.dicl import DiclLevel
from ..models.matching import PairwiseMatcher


class AtPrecision(nn.Module):
    """A part of a network that computes in `dtype`, whatever its input has."""

    def __init__(self, part: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.part, self.dtype = part.to(dtype), dtype

    def forward(self, *inputs: Tensor) -> Tensor | list[Tensor]:
        """The output of the part, in its precision."""
        return cast(Tensor | list[Tensor], self.part(*(x.to(self.dtype) for x in inputs)))


def in_half(network: FlowNetwork) -> DiclFlow:
    """Copy a network: weights and arithmetic in float16, batch norms part of the convolutions."""
    if not isinstance(network, DiclFlow):
        raise InputError(
            f"host {network.config.host!r} is exported in float32 only; use `precision='fp32'`"
        )
    result = copy.deepcopy(network).eval().requires_grad_(False)
    for block in [module for module in result.modules() if isinstance(module, ConvBlock)]:
        _fold(block)
    result.half()  # rounded once, after folding
    result.features = AtPrecision(result.features, torch.float16)
    for stride, level in result.levels.items():
        original = cast(DiclLevel, network.levels[stride])
        _keep_readout(cast(DiclLevel, level), original)
    return result


def _fold(block: ConvBlock) -> None:
    weight, bias = fold(block)
    block.conv.weight = nn.Parameter(weight, requires_grad=False)
    if isinstance(block.bn, nn.BatchNorm2d):
        block.conv.bias = nn.Parameter(bias, requires_grad=False)
        block.bn = nn.Identity()


def _keep_readout(level: DiclLevel, original: DiclLevel) -> None:
    """Replace what makes the scores of `level` by the layers of the `original`, in float32."""
    level.projection = AtPrecision(copy.deepcopy(original.projection), torch.float32)
    if not isinstance(level.matcher, PairwiseMatcher):  # products of features, no convolutions
        level.add_module("matcher", AtPrecision(copy.deepcopy(original.matcher), torch.float32))
        return
    layers = cast(nn.Sequential, level.matcher.net)
    last = cast(nn.Sequential, cast(PairwiseMatcher, original.matcher).net)[-1]
    layers[-1] = AtPrecision(copy.deepcopy(last), torch.float32)
