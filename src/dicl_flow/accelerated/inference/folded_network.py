"""The accelerated network: features, levels and context nets, for CPUs and for CUDA."""

import copy
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...config import ModelConfig
from ...errors import InputError
from ...matching import PAIRWISE_NETS, MatchingNet, PairwiseMatcher
from ...models import DiclFlow, InitialFlow, LevelFlow, network_type
from ...models.dicl import OWN_MATCHER, DiclLevel
from ...models.network import Pair
from ...nn import ContextNet, ConvBlock, FeaturePyramid, Merge
from ...ops import resize
from .factored_matching import FactoredMatcher
from .folded_layers import FoldedConv, fold, folded, is_reduced, with_remainder
from .kernel_level import KernelLevel

_COARSE = 32


class ImageConv(FoldedConv):
    """The first layer of the network; it also sees the digits that rounding takes from an image."""

    def __init__(self, block: ConvBlock, dtype: torch.dtype) -> None:
        weight, bias = fold(block)
        wide = torch.cat([weight, weight, 0 * weight[:, :2]], 1)  # tensor cores need multiples of 8
        super().__init__(block.conv, wide, bias, dtype, relu=True)
        self.taps = nn.Buffer(weight.permute(1, 2, 3, 0).flatten(0, 2).to(dtype).contiguous())

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W)."""
        if x.is_cuda:
            from ..kernels.image_layer import image_layer

            return image_layer(x, self.taps, self.bias)
        rounded, remainder = with_remainder(x, self.weight.dtype)
        x = torch.cat([rounded, remainder, torch.zeros_like(rounded[:, :2])], 1)
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class KernelMerge(Merge):
    """A `Merge` on CUDA: the ReLU before the concatenation is part of the same kernel."""

    def __init__(self, merge: Merge) -> None:
        """Take the layers of `merge`, which are folded already."""
        nn.Module.__init__(self)
        self.resample, self.fuse = merge.resample, merge.fuse
        assert isinstance(self.resample, FoldedConv)
        self.resample.relu = not self.resample.up  # free in cuDNN's strided convolutions

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        from ..kernels.merge_input import merge_input

        return self.fuse(merge_input(self.resample(neighbour), skip))


class FoldedContext(ContextNet):
    """A `ContextNet` that also sees the digits that rounding takes from a flow."""

    def __init__(self, context: ContextNet, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.dtype = dtype
        self.layers = folded(context.layers, dtype)
        last = self.layers[-1]
        assert isinstance(last, FoldedConv)
        for buffer in last.buffers():
            buffer.mul_(context.scale)  # a power of two: nothing is rounded
        if is_reduced(dtype):
            first = context.layers[0]
            assert isinstance(first, ConvBlock)
            weight, bias = fold(first)
            weight = torch.cat([weight, weight[:, :2]], 1)
            self.layers[0] = FoldedConv(first.conv, weight, bias, dtype, relu=True)

    def forward(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """Return the correction (B, 2, H, W) to add to `flow`."""
        size = (features.shape[-2], features.shape[-1])
        small = image if image.shape[-2:] == size else resize(image, size)
        return self.layers(self._input(flow, entropy, features, small))

    def _input(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """All (B, …, H, W) of one size -> what the first layer reads."""
        if is_reduced(self.dtype) and flow.is_cuda:
            from ..kernels.context_input import context_input

            return context_input(flow, entropy, features.to(self.dtype), image)
        parts = [flow, entropy, features, image]
        if is_reduced(self.dtype):
            parts[0], remainder = with_remainder(flow, self.dtype)
            parts.append(remainder)
        return torch.cat([part.to(self.dtype) for part in parts], 1)


class AcceleratedDiclFlow(DiclFlow):
    """A `DiclFlow` for inference only: the same result, sooner.

    Batch norms are folded into the convolutions, tensors are channels last, both images pass
    through the feature net together, the matching net's first layer is factored. It stays on
    `device` (default: where `model` is): for CUDA it is built of Triton kernels.
    """

    def __init__(
        self,
        model: DiclFlow,
        dtype: torch.dtype = torch.float32,
        memory_limit: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not is_supported(model.config):
            raise InputError(
                f"host {model.config.host!r} with matcher {model.config.matcher!r} has no "
                f"accelerated version; use `backend='plain'`"
            )
        device = device or next(model.parameters()).device
        make = _cuda_level if device.type == "cuda" else _cpu_level
        levels = [
            make(level, _level_dtype(dtype, stride), memory_limit)
            for stride, level in zip(model.config.strides, model.levels.values(), strict=True)
        ]
        pyramid = cast(FeaturePyramid, model.features)
        super().__init__(model.config, _folded_pyramid(pyramid, dtype, device), levels)
        self._stream: torch.cuda.Stream | None = None
        self.to(device).eval()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a pickle what belongs to this process."""
        return {**vars(self), "_stream": None}

    def forward(
        self, image1: Tensor, image2: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        both = torch.cat([image1, image2])
        if both.is_cuda:
            return self.flow_from_pairs(
                self._coarse_pairs_first(both, image1, initial), image1, initial
            )
        return self.flow_from_pairs(self._halves(self.features(both)), image1, initial)

    def _coarse_pairs_first(
        self, images: Tensor, image1: Tensor, initial: InitialFlow | None
    ) -> Iterator[Pair]:
        """Yield the features of coarse levels while those of finer ones are still being made.

        The kernels of coarse levels are small: they leave room on the device for others. All
        that the two streams share is held until both are done with it.
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
                if self.runs(int(stride), initial):
                    cast(KernelLevel, level).prepare(pair[0], image1)
                made.append((pair, self._stream.record_event()))
        for pair, done in made:
            current.wait_event(done)
            if pair is made[-1][0]:
                maps.clear()  # all of them are read: let the finest level have the memory
            yield pair


def is_supported(config: ModelConfig) -> bool:
    """Whether the network that `config` describes has an accelerated version."""
    net = PAIRWISE_NETS.get(config.matcher or OWN_MATCHER)
    return network_type(config) is DiclFlow and net is MatchingNet


def _folded_pyramid(
    pyramid: FeaturePyramid, dtype: torch.dtype, device: torch.device
) -> FeaturePyramid:
    result = folded(pyramid, dtype)
    if device.type == "cuda":
        for sweep in (result.up, result.down_again, result.up_again):
            for stride, merge in sweep.items():
                sweep[stride] = KernelMerge(cast(Merge, merge))
    first = pyramid.stem[0]
    assert isinstance(first, ConvBlock)
    if is_reduced(dtype):
        result.stem[0] = ImageConv(first, dtype)
    return result


def _level_dtype(dtype: torch.dtype, stride: int) -> torch.dtype:
    """Coarse levels cost little, and what bfloat16 loses there is magnified by their stride."""
    return torch.float32 if dtype == torch.bfloat16 and stride >= _COARSE else dtype


def _cuda_level(level: nn.Module, dtype: torch.dtype, memory_limit: int | None) -> DiclLevel:
    assert isinstance(level, DiclLevel)
    context = None if level.context is None else FoldedContext(level.context, dtype)
    return KernelLevel(level, context, dtype, memory_limit)


def _cpu_level(level: nn.Module, dtype: torch.dtype, memory_limit: int | None) -> DiclLevel:
    assert isinstance(level, DiclLevel)
    assert isinstance(level.matcher, PairwiseMatcher)
    projection = copy.deepcopy(level.projection).to(torch.promote_types(dtype, torch.float32))
    context = None if level.context is None else FoldedContext(level.context, dtype)
    return DiclLevel(FactoredMatcher(level.matcher, dtype, memory_limit), projection, context)
