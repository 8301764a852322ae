"""A level on CUDA: each step between two convolutions is one kernel."""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...matching import DisplacementProjection, MatchingNet, PairwiseMatcher
from ...models import LevelFlow
from ...models.dicl import DiclLevel
from ...nn import ContextNet
from ...ops import resize
from ...ops.warp import INSIDE
from .cells import last_to_patches, up_to_corners
from .factored_layer import FactoredLayer
from .folded_layers import FoldedConv, fold, folded_block, is_reduced
from .folded_network import FoldedContext
from .memory import displacements_at_once
from .side_stream import SideStream


class KernelContext(FoldedContext):
    """A `FoldedContext` whose input is put together by one kernel, and its output by another."""

    def __init__(self, context: ContextNet, dtype: torch.dtype) -> None:
        super().__init__(context, dtype)
        last = self.layers[-1]
        assert isinstance(last, FoldedConv)
        self.bias = nn.Buffer(last.bias)
        last.bias = nn.Buffer(torch.zeros_like(last.bias))
        last.has_bias = False

    def refine(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """`flow` and its correction, (B, 2, H, W); all have this size."""
        from ..kernels.refine import refine

        correction = self.layers(self._input(flow, entropy, features, image))
        return refine(flow, correction, self.bias)

    def _input(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        if not is_reduced(self.dtype):
            return super()._input(flow, entropy, features, image)
        from ..kernels.context_input import context_input

        return context_input(flow, entropy, features.to(self.dtype), image)


class _FirstImage(NamedTuple):
    features: Tensor
    part: Tensor
    """Their term of the matching net's first layer."""
    image: Tensor
    """At the size of the level."""
    done: torch.cuda.Event | None
    """When `part` and `image` are computed, on CUDA."""


class KernelLevel(DiclLevel):
    """A `DiclLevel` on CUDA: all shapes are fixed, so that it can be recorded."""

    def __init__(
        self,
        level: DiclLevel,
        context: KernelContext | None,
        dtype: torch.dtype,
        memory_limit: int | None,
    ) -> None:
        nn.Module.__init__(self)
        matcher = level.matcher
        assert isinstance(matcher, PairwiseMatcher)
        net = matcher.net
        assert isinstance(net, MatchingNet)
        self.radius, self.context, self.memory_limit = matcher.radius, context, memory_limit
        self._prepared: tuple[Tensor, _FirstImage] | None = None
        self._side = SideStream()
        self.first = FactoredLayer(net.first, self.radius, dtype)
        self.inner = nn.Sequential(
            *(folded_block(block, dtype) for block in (net.down, *net.inner))
        )
        self.tail = Tail(net, dtype)
        mixes = isinstance(level.projection, DisplacementProjection)
        self.projection_weight = nn.Buffer(_projection(level)) if mixes else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a pickle what belongs to one pair."""
        return {**vars(self), "_prepared": None}

    def prepare(self, features1: Tensor, image1: Tensor) -> torch.cuda.Event | None:
        """Compute in advance what needs the first image only; `forward` takes it from there.

        On CUDA it may start at the returned event, and waits for the rest when it is needed.
        """
        layout = self.first.prepare(features1)
        start = _now(layout)
        small = resize(image1, (features1.shape[-2], features1.shape[-1]))
        part = self.first.first_term(layout)
        self._prepared = (features1, _FirstImage(layout, part, small, _now(part)))
        return start

    def forward(
        self, features1: Tensor, features2: Tensor, image1: Tensor, coarse_flow: Tensor | None
    ) -> LevelFlow:
        """(B, C, H, W) features, full-size image, the coarser level's flow at either size."""
        from ..kernels.readout import readout
        from ..kernels.warp import warp

        if self._prepared is None or self._prepared[0] is not features1:
            self.prepare(features1, image1)
        assert self._prepared is not None
        first, self._prepared = self._prepared[1], None
        features2 = self.first.prepare(features2)
        features2, visible, coarse_flow = warp(features2, coarse_flow, INSIDE)
        patches = self._patches(first, features2, visible)
        matched, entropy = readout(
            patches, self.tail.score_bias, self.projection_weight, coarse_flow, len(features1)
        )
        refined = matched
        if isinstance(self.context, KernelContext):
            refined = self.context.refine(matched, entropy, first.features, first.image)
        return LevelFlow(matched, refined, entropy)

    def _patches(self, first: _FirstImage, features2: Tensor, visible: Tensor) -> Tensor:
        """(U·V·B, H/2 + 1, 4, W/2 + 1, 4): the scores as `readout` takes them."""
        from ..kernels.first_layer import add_parts, correct, new_layer, see

        count = (2 * self.radius + 1) ** 2
        features, parts = (first.features, features2), None
        seen, numbers = see(visible, self.radius)
        steps = -(-count // displacements_at_once(first.part, self.memory_limit))
        bounds = [-(-count * step // steps) for step in range(steps + 1)]  # the largest first
        batch, _, height, width = first.features.shape
        patches = self.tail.room(count * batch, height, width)
        for step, (start, stop) in enumerate(pairwise(bounds)):
            chunk = range(start, stop)
            x = new_layer(first.part, chunk)
            with self._side.fork(x.device):  # it needs no terms
                correct(x, features, seen, numbers[step], self.first.taps, self.first.bias, chunk)
            parts = parts or (first.part, self.first.second_term(features2))
            if first.done is not None:
                torch.cuda.current_stream().wait_event(first.done)
            add_parts(x, parts, seen, self.first.bias, chunk)
            self._side.join(x.device)
            for layer in self.inner:  # one by one: a layer's input is free when it is done
                x = layer(x)
            self.tail(x, patches[batch * start : batch * stop])
        return patches


class Tail(nn.Module):
    """The last two layers: the transposed one, and the one that gives the scores."""

    def __init__(self, net: MatchingNet, dtype: torch.dtype) -> None:
        super().__init__()
        weight, bias = fold(net.up)
        more_in, more_out = (_missing(width) for width in weight.shape[:2])
        weight = F.pad(weight, [0, 0, 0, 0, 0, more_out, 0, more_in])
        weight, bias = up_to_corners(weight, F.pad(bias, [0, more_out]))
        self.up = nn.Buffer(weight.to(dtype).permute(2, 3, 0, 1).flatten(0, 1).contiguous())
        self.bias = nn.Buffer(bias.float())
        # float16 has more digits than bfloat16
        precise = torch.float16 if is_reduced(dtype) else dtype
        last = F.pad(net.score.weight.detach(), [0, 0, 0, 0, 0, more_out])
        self.last = nn.Buffer(last_to_patches(last).to(precise))
        assert net.score.bias is not None
        self.score_bias = nn.Buffer(net.score.bias.detach().float())

    def room(self, items: int, height: int, width: int) -> Tensor:
        """Where `forward` puts what `readout` takes."""
        return self.last.new_empty(items, height // 2 + 1, 4, width // 2 + 1, 4)

    def forward(self, x: Tensor, patches: Tensor) -> None:
        """(N, in, H/2, W/2), channels last -> (N, H/2 + 1, 4, W/2 + 1, 4)."""
        from ..kernels.score_layers import score_patches

        score_patches(x, self.up, self.bias, self.last, patches)


def _missing(width: int) -> int:
    """How many channels to add for tiles of Triton: powers of two, at least 16."""
    return (1 << (max(width, 16) - 1).bit_length()) - width


def _now(tensor: Tensor) -> torch.cuda.Event | None:
    """When all is done that was started until now; on CUDA."""
    return torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None


def _projection(level: DiclLevel) -> Tensor:
    assert isinstance(level.projection, DisplacementProjection)
    return level.projection.weight.detach().float()
