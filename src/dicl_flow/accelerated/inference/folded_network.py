"""The accelerated network in plain torch operations: its layers are folded."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...matching import PairwiseMatcher
from ...models import DiclFlow, InitialFlow, LevelFlow, has_matching_net
from ...models.dicl import DiclLevel
from ...nn import ContextNet, ConvBlock, FeaturePyramid
from ...ops import resize
from .factored_matching import FactoredMatcher
from .folded_layers import (
    FoldedConv,
    fold,
    folded,
    folded_block,
    folded_head,
    is_reduced,
    with_remainder,
)
from .winograd import dtype_of_most

_COARSE, _COARSE_IF_SUMMED = 32, 16


class ImageConv(FoldedConv):
    """The very first layer, which sees the bits that a reduced precision cuts off an image."""

    def __init__(self, block: ConvBlock, dtype: torch.dtype) -> None:
        weight, bias = fold(block)
        wide = torch.cat([weight, weight, 0 * weight[:, :2]], 1)  # 8 inputs suit matrix units
        super().__init__(block.conv, wide, bias, dtype, relu=True)

    def forward(self, x: Tensor, less: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W)."""
        rounded, remainder = with_remainder(x, self.weight.dtype)
        x = torch.cat([rounded, remainder, torch.zeros_like(rounded[:, :2])], 1)
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class FoldedContext(ContextNet):
    """An accelerated `ContextNet`, which sees the bits that a reduced precision cuts off a flow."""

    def __init__(self, context: ContextNet, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.dtype = dtype
        *blocks, last = context.layers
        self.layers = nn.Sequential(
            *(folded_block(block, dtype) for block in blocks),
            folded_head(last, dtype, context.scale),  # a power of two: nothing is rounded
        )
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
        """All (B, …, H, W), of one size -> the input of the first layer."""
        parts = [flow, entropy, features, image]
        if is_reduced(self.dtype):
            parts[0], remainder = with_remainder(flow, self.dtype)
            parts.append(remainder)
        return torch.cat([part.to(self.dtype) for part in parts], 1)


class AcceleratedDiclFlow(DiclFlow):
    """A `DiclFlow` for inference only: the same result, faster.

    Batch norms are folded into the convolutions, tensors are channels last, both images pass
    through the feature net together, the first layer of the matching net is factored. It stays
    on `device` (default: where `model` is).
    """

    def __init__(
        self,
        model: DiclFlow,
        dtype: torch.dtype = torch.float32,
        memory_limit: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not has_matching_net(model.config):
            raise InputError(
                f"host {model.config.host!r} with matcher {model.config.matcher!r} has no "
                f"accelerated version; use `backend='plain'`"
            )
        device = device or next(model.parameters()).device
        most = dtype_of_most(dtype, device)
        dtypes = (_level_dtype(dtype, most, stride) for stride in model.config.strides)
        levels = [
            self._make_level(cast(DiclLevel, level), level_dtype, memory_limit)
            for level, level_dtype in zip(model.levels.values(), dtypes, strict=True)
        ]
        pyramid = self._make_pyramid(cast(FeaturePyramid, model.features), most)
        super().__init__(model.config, pyramid, levels)
        self.to(device).eval()

    def forward(
        self, image1: Tensor, image2: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        both = torch.cat([image1, image2])
        return self.flow_from_pairs(self._halves(self.features(both)), image1, initial)

    @staticmethod
    def _make_level(level: DiclLevel, dtype: torch.dtype, memory_limit: int | None) -> DiclLevel:
        assert isinstance(level.matcher, PairwiseMatcher)
        projection = copy.deepcopy(level.projection).to(torch.promote_types(dtype, torch.float32))
        most, context = dtype_of_most(dtype), level.context
        context = None if context is None else FoldedContext(context, most)
        return DiclLevel(FactoredMatcher(level.matcher, dtype, memory_limit), projection, context)

    @staticmethod
    def _make_pyramid(pyramid: FeaturePyramid, dtype: torch.dtype) -> FeaturePyramid:
        accelerated = folded(pyramid, dtype)
        if is_reduced(dtype):
            accelerated.stem[0] = ImageConv(cast(ConvBlock, pyramid.stem[0]), dtype)
        return accelerated


def _level_dtype(dtype: torch.dtype, most: torch.dtype, stride: int) -> torch.dtype:
    """Coarse levels cost little, and their rounding is multiplied by their stride.

    That of bfloat16 is too much at some, and where sums are float16, too, at more of them.
    """
    if most != dtype:
        return most if stride >= _COARSE_IF_SUMMED else dtype
    return torch.float32 if dtype == torch.bfloat16 and stride >= _COARSE else dtype
