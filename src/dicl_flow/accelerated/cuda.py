"""The accelerated network for CUDA: each step between two convolutions is one kernel."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..models import InitialFlow, LevelFlow
from ..models.blocks import ConvBlock
from ..models.dicl import DiclLevel, FeaturePyramid, Merge
from ..models.matching import DisplacementProjection, MatchingNet, PairwiseMatcher
from ..models.network import Pair
from ..ops import INSIDE, resize, size_of
from .context import KernelContext
from .cpu import AcceleratedDiclFlow
from .first_layer import FactoredLayer
from .first_layer.cuda import add_terms, correct, find_visible_taps, new_layer
from .folded import folded, folded_block, is_reduced
from .merge import KernelMerge
from .readout import readout
from .recording import SideStream
from .sampling import warp
from .score_layers import Tail
from .settings import displacements_at_once
from .stem import KernelImageConv


class _FirstImage(NamedTuple):
    features: Tensor
    term: Tensor  # theirs, of the matching net's first layer
    image: Tensor  # at the size of the level
    done: torch.cuda.Event | None  # when `term` and `image` are computed, on CUDA


class KernelLevel(DiclLevel):
    """A `DiclLevel` on CUDA: all shapes are fixed, so that it can be recorded."""

    def __init__(self, level: DiclLevel, dtype: torch.dtype, memory_limit: int | None) -> None:
        nn.Module.__init__(self)
        matcher, context = level.matcher, level.context
        assert isinstance(matcher, PairwiseMatcher)
        net = matcher.net
        assert isinstance(net, MatchingNet)
        self.radius, self.memory_limit = matcher.radius, memory_limit
        self.context = None if context is None else KernelContext(context, dtype)
        self._prepared: tuple[Tensor, _FirstImage] | None = None
        self._side = SideStream()
        self.first = FactoredLayer(net.first, self.radius, dtype)
        self.inner = nn.Sequential(
            *(folded_block(block, dtype) for block in (net.down, *net.inner))
        )
        self.tail = Tail(net, dtype)
        mixing = level.projection
        weight = mixing.weight.detach() if isinstance(mixing, DisplacementProjection) else None
        self.projection_weight = None if weight is None else nn.Buffer(weight.float())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a pickle what belongs to one pair."""
        return {**vars(self), "_prepared": None}

    def prepare(self, features1: Tensor, image1: Tensor) -> torch.cuda.Event | None:
        """Compute in advance what needs the first image only; on CUDA, when `forward` may start."""
        layout = self.first.prepare(features1)
        start = _now(layout)
        small = resize(image1, size_of(features1))
        term = self.first.first_term(layout)
        self._prepared = (features1, _FirstImage(layout, term, small, _now(term)))
        return start

    def forward(
        self, features1: Tensor, features2: Tensor, image1: Tensor, coarse_flow: Tensor | None
    ) -> LevelFlow:
        """(B, C, H, W) features, full-size image, the coarser level's flow at either size."""
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
        count = (2 * self.radius + 1) ** 2
        features, terms = (first.features, features2), None
        seen, counters = find_visible_taps(visible, self.radius)
        steps = -(-count // displacements_at_once(first.term, self.memory_limit))
        bounds = [-(-count * step // steps) for step in range(steps + 1)]  # the largest first
        batch, _, height, width = first.features.shape
        patches = self.tail.room(count * batch, height, width)
        for step, (start, stop) in enumerate(pairwise(bounds)):
            chunk = range(start, stop)
            x = new_layer(first.term, chunk)
            with self._side.fork(x.device):  # it needs no terms
                correct(x, features, seen, counters[step], self.first.taps, self.first.bias, chunk)
            terms = terms or (first.term, self.first.second_term(features2))
            if first.done is not None:
                torch.cuda.current_stream().wait_event(first.done)
            add_terms(x, terms, seen, self.first.bias, chunk)
            self._side.join(x.device)
            for layer in self.inner:  # one by one: a layer's input is free when it is done
                x = layer(x)
            self.tail(x, patches[batch * start : batch * stop])
        return patches


def _now(tensor: Tensor) -> torch.cuda.Event | None:
    """When all is done that was started until now; on CUDA."""
    return torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None


class KernelDiclFlow(AcceleratedDiclFlow):
    """An `AcceleratedDiclFlow` for CUDA; it can be recorded."""

    _coarse = 32
    _stream: torch.cuda.Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a pickle what belongs to this process."""
        return {**vars(self), "_stream": None}

    def forward(
        self, image1: Tensor, image2: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        pairs = self._coarse_pairs_first(join(image1, image2), image1, initial)
        return self.flow_from_pairs(pairs, image1, initial)

    def _coarse_pairs_first(
        self, images: Tensor, image1: Tensor, initial: InitialFlow | None
    ) -> Iterator[Pair]:
        """Yield the features of coarse levels while those of finer levels are still computed.

        The kernels of coarse levels are small and leave room on the device for others.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        current, pyramid = torch.cuda.current_stream(), cast(FeaturePyramid, self.features)
        maps = pyramid.descend(images)
        self._stream.wait_stream(current)
        made = []
        with torch.cuda.stream(self._stream):
            halves = self._halves(pyramid.ascend(maps))
            for (stride, level), pair in zip(self.levels.items(), halves, strict=True):
                start = self._stream.record_event()
                if self.runs(int(stride), initial):
                    start = cast(KernelLevel, level).prepare(pair[0], image1) or start
                made.append((pair, start))
        for pair, start in made:
            current.wait_event(start)
            if pair is made[-1][0]:
                maps.clear()  # all have been read: leave the memory to the finest level
            yield pair

    def _enlarge(self, refined: Tensor, size: tuple[int, int]) -> Tensor:
        return refined  # a level does so when it warps

    @staticmethod
    def _make_level(level: DiclLevel, dtype: torch.dtype, memory_limit: int | None) -> DiclLevel:
        return KernelLevel(level, dtype, memory_limit)

    @staticmethod
    def _make_pyramid(pyramid: FeaturePyramid, dtype: torch.dtype) -> FeaturePyramid:
        accelerated = folded(pyramid, dtype)
        for sweep in (accelerated.up, accelerated.down_again, accelerated.up_again):
            for stride, merge in sweep.items():
                sweep[stride] = KernelMerge(cast(Merge, merge))
        if is_reduced(dtype):
            accelerated.stem[0] = KernelImageConv(cast(ConvBlock, pyramid.stem[0]), dtype)
        return accelerated


def join(first: Tensor, second: Tensor) -> Tensor:
    """cat([first, second]); two halves of one tensor are not copied."""
    end = first.data_ptr() + first.nbytes
    halves = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    if halves and second.data_ptr() == end and first.is_contiguous() and second.is_contiguous():
        return first.as_strided((2 * len(first), *first.shape[1:]), first.stride())
    return torch.cat([first, second])
