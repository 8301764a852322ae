"""The accelerated network for CUDA, made of Triton kernels."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...models import InitialFlow, LevelFlow
from ...models.dicl import DiclLevel
from ...models.network import Pair
from ...nn import ConvBlock, FeaturePyramid, Merge
from .folded_layers import FoldedConv, fold, is_reduced
from .folded_network import AcceleratedDiclFlow, ImageConv
from .kernel_level import KernelContext, KernelLevel


class KernelImageConv(ImageConv):
    """An `ImageConv` as one kernel."""

    def __init__(self, block: ConvBlock, dtype: torch.dtype) -> None:
        super().__init__(block, dtype)
        weight, _ = fold(block)
        self.taps = nn.Buffer(weight.permute(1, 2, 3, 0).flatten(0, 2).to(dtype).contiguous())

    def forward(self, x: Tensor, less: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W)."""
        from ..kernels.image_layer import image_layer

        return image_layer(x, self.taps, self.bias)


class KernelMerge(Merge):
    """A `Merge` whose ReLU and concatenation are one kernel."""

    def __init__(self, merge: Merge) -> None:
        """Take the layers of `merge`, which are folded already."""
        nn.Module.__init__(self)
        self.resample, self.fuse = merge.resample, merge.fuse
        assert isinstance(self.resample, FoldedConv)
        self.resample.relu = not self.resample.up  # cuDNN has it for free on the way down

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        from ..kernels.merge_input import merge_input

        return self.fuse(merge_input(self.resample(neighbour), skip))


class KernelDiclFlow(AcceleratedDiclFlow):
    """An `AcceleratedDiclFlow` for CUDA; it can be recorded."""

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

        The kernels of coarse levels are small and leave room on the device for others. What the
        two streams share is kept until both are done with it.
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
        context = None if level.context is None else KernelContext(level.context, dtype)
        return KernelLevel(level, context, dtype, memory_limit)

    @staticmethod
    def _make_pyramid(pyramid: FeaturePyramid, dtype: torch.dtype) -> FeaturePyramid:
        accelerated = AcceleratedDiclFlow._make_pyramid(pyramid, dtype)
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
