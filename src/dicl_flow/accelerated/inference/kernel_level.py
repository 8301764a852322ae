"""A level on CUDA: everything between the convolutions is one kernel each."""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...matching import DisplacementProjection, PairwiseMatcher
from ...models import LevelFlow
from ...models.dicl import DiclLevel
from ...nn import ContextNet, ConvBlock
from ...ops import resize
from ...ops.warp import INSIDE
from .cells import last_to_cells, up_to_cells
from .folded_layers import FoldedConv, fold, folded_block, precise
from .memory import displacements_at_once


class _FirstImage(NamedTuple):
    features: Tensor
    part: Tensor
    """What they add to the matching net's first layer."""
    image: Tensor
    """At the size of the level."""


class KernelLevel(DiclLevel):
    """The twin of a `DiclLevel`, of fixed shapes only, so that it can be recorded."""

    def __init__(
        self,
        level: DiclLevel,
        context: ContextNet | None,
        dtype: torch.dtype,
        memory_limit: int | None,
    ) -> None:
        nn.Module.__init__(self)
        matcher = level.matcher
        assert isinstance(matcher, PairwiseMatcher)
        assert isinstance(matcher.net, nn.Sequential)
        first, *inner, up, last = matcher.net
        assert isinstance(first, ConvBlock)
        assert isinstance(up, ConvBlock)
        assert isinstance(last, nn.Conv2d)
        self.context = context
        self._prepared: tuple[Tensor, _FirstImage] | None = None
        self.radius, self.memory_limit = matcher.radius, memory_limit
        weight, bias = fold(first)  # (96, 2C, 3, 3)
        of_first, of_second = weight.chunk(2, 1)
        self.part1 = FoldedConv(first.conv, of_first, 0 * bias, dtype, relu=False)
        self.part2 = FoldedConv(first.conv, of_second, 0 * bias, dtype, relu=False)
        self.part2.padding = [self.radius + 1] * 2  # wanted `radius` beyond the image
        self.taps = nn.Buffer(weight.permute(2, 3, 1, 0).flatten(0, 2).to(dtype).contiguous())
        self.bias = nn.Buffer(bias.to(dtype))
        assert last.bias is not None
        cells, bias = last_to_cells(last.weight.detach(), last.bias.detach())
        self.inner = nn.Sequential(
            *(folded_block(block, dtype) for block in inner),
            FoldedConv(last, *up_to_cells(*fold(up)), dtype, relu=True),
            FoldedConv(last, cells, 0 * bias, precise(dtype), relu=False),
        )
        self.last_bias = nn.Buffer(last.bias.detach().float())
        mixes = isinstance(level.projection, DisplacementProjection)
        self.projection_weight = nn.Buffer(_projection(level)) if mixes else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a pickle what belongs to one pair."""
        return {**vars(self), "_prepared": None}

    def prepare(self, features1: Tensor, image1: Tensor) -> None:
        """Do beforehand what the first image suffices for; `forward` takes it from there."""
        layout = features1.to(self.bias.dtype).contiguous(memory_format=torch.channels_last)
        small = resize(image1, (features1.shape[-2], features1.shape[-1]))
        self._prepared = (features1, _FirstImage(layout, self.part1(layout), small))

    def forward(
        self, features1: Tensor, features2: Tensor, image1: Tensor, coarse_flow: Tensor | None
    ) -> LevelFlow:
        """(B, C, H, W) features, full-size image, the coarser level's flow at this size."""
        from ..kernels.readout import readout
        from ..kernels.warp import warp

        if self._prepared is None or self._prepared[0] is not features1:
            self.prepare(features1, image1)
        assert self._prepared is not None
        first, self._prepared = self._prepared[1], None
        features2 = features2.to(self.bias.dtype).contiguous(memory_format=torch.channels_last)
        if coarse_flow is None:
            visible = (features2 != 0).any(1).to(torch.int8)
        else:
            features2, visible = warp(features2, coarse_flow, INSIDE)
        scores = self._scores(first, features2, visible)
        matched, entropy = readout(
            scores, self.last_bias, self.projection_weight, coarse_flow, len(features1)
        )
        refined = matched
        if self.context is not None:
            refined = matched + self.context(matched, entropy, first.features, first.image)
        return LevelFlow(matched, refined, entropy)

    def _scores(self, first: _FirstImage, features2: Tensor, visible: Tensor) -> Tensor:
        """(U·V·B, 8, H/2, W/2): scores of 2x2 cells."""
        from ..kernels.first_layer import first_layer, see

        count = (2 * self.radius + 1) ** 2
        parts, features = (first.part, self.part2(features2)), (first.features, features2)
        seen = see(visible, self.radius)
        steps = -(-count // displacements_at_once(parts[0], self.memory_limit))
        bounds = [-(-count * step // steps) for step in range(steps + 1)]  # the largest first
        pieces = []
        for start, stop in pairwise(bounds):
            x = first_layer(parts, features, seen, self.taps, self.bias, range(start, stop))
            for layer in self.inner:  # one by one: a layer's input is free when it is done
                x = layer(x)
            pieces.append(x)
        return torch.cat(pieces).contiguous(memory_format=torch.channels_last)


def _projection(level: DiclLevel) -> Tensor:
    assert isinstance(level.projection, DisplacementProjection)
    return level.projection.weight.detach().float()
