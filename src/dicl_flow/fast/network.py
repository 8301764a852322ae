import copy

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..errors import InputError
from ..matching import PairwiseMatcher
from ..models import DiclFlow, LevelFlow
from ..models.dicl import DiclLevel
from ..nn import ContextNet, ConvBlock, FeaturePyramid
from ..ops import resize
from .kernel_level import KernelLevel
from .layers import FusedConv, fold, fused, is_reduced, with_remainder
from .matching import FactoredMatcher

_COARSE = 16


class ImageConv(FusedConv):
    """The first layer of all, which sees the bits that a reduced precision cuts off an image."""

    def __init__(self, block: ConvBlock, dtype: torch.dtype) -> None:
        weight, bias = fold(block)
        weight = torch.cat([weight, weight, 0 * weight[:, :2]], 1)  # tensor cores like eights
        super().__init__(block.conv, weight, bias, dtype, relu=True)

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) -> (B, out, H, W)."""
        rounded, remainder = with_remainder(x, self.weight.dtype)
        x = torch.cat([rounded, remainder, torch.zeros_like(rounded[:, :2])], 1)
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class FastContext(ContextNet):
    """The twin of a `ContextNet`, which sees the bits that a reduced precision cuts off a flow."""

    def __init__(self, context: ContextNet, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.dtype, self.scale = dtype, context.scale
        self.layers = fused(context.layers, dtype)
        if is_reduced(dtype):
            first = context.layers[0]
            assert isinstance(first, ConvBlock)
            weight, bias = fold(first)
            weight = torch.cat([weight, weight[:, :2]], 1)
            self.layers[0] = FusedConv(first.conv, weight, bias, dtype, relu=True)

    def forward(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """Return the correction (B, 2, H, W) to add to `flow`, in its precision."""
        small = resize(image, (features.shape[-2], features.shape[-1]))
        parts = [flow, entropy, features, small]
        if is_reduced(self.dtype):
            parts[0], remainder = with_remainder(flow, self.dtype)
            parts.append(remainder)
        x = torch.cat([part.to(self.dtype) for part in parts], 1)
        x = x.contiguous(memory_format=torch.channels_last)
        return self.layers(x).to(flow.dtype) * self.scale


class FastDiclFlow(DiclFlow):
    """A `DiclFlow` for inference only: the same answer, sooner.

    Batch norms are folded into the convolutions, tensors are channels last, both images pass
    through the feature net together, the matching net's first layer is factored. It stays on
    the device that `model` is on: for CUDA it is built of Triton kernels.
    """

    def __init__(
        self,
        model: DiclFlow,
        dtype: torch.dtype = torch.float32,
        memory_limit: int | None = None,
    ) -> None:
        if not is_supported(model.config):
            raise InputError(
                f"there is no fast path for host {model.config.host!r} with matcher "
                f"{model.config.matcher!r}; use backend='plain'"
            )
        make = _kernel_level if next(model.parameters()).is_cuda else _fast_level
        levels = [
            make(level, _level_dtype(dtype, stride), memory_limit)
            for stride, level in zip(model.config.strides, model.levels.values(), strict=True)
        ]
        super().__init__(model.config, _fast_pyramid(model.features, dtype), levels)
        self.eval()

    def forward(self, image1: Tensor, image2: Tensor) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        both = torch.cat([image1, image2]).contiguous(memory_format=torch.channels_last)
        pyramids = [features.chunk(2) for features in self.features(both)]
        pyramid1, pyramid2 = zip(*pyramids, strict=True)
        return self.flow_from_features(pyramid1, pyramid2, image1)


def is_supported(config: ModelConfig) -> bool:
    """Whether the network that `config` describes has a fast twin."""
    return config.host == "dicl" and config.matcher in (None, "dicl")


def _fast_pyramid(pyramid: FeaturePyramid, dtype: torch.dtype) -> FeaturePyramid:
    twin = fused(pyramid, dtype)
    first = pyramid.stem[0]
    assert isinstance(first, ConvBlock)
    if is_reduced(dtype):
        twin.stem[0] = ImageConv(first, dtype)
    return twin


def _level_dtype(dtype: torch.dtype, stride: int) -> torch.dtype:
    """Coarse levels cost little, and what bfloat16 loses there is magnified by their stride."""
    return torch.float32 if dtype == torch.bfloat16 and stride >= _COARSE else dtype


def _kernel_level(level: nn.Module, dtype: torch.dtype, memory_limit: int | None) -> DiclLevel:
    assert isinstance(level, DiclLevel)
    context = None if level.context is None else FastContext(level.context, dtype)
    return KernelLevel(level, context, dtype, memory_limit)


def _fast_level(level: nn.Module, dtype: torch.dtype, memory_limit: int | None) -> DiclLevel:
    assert isinstance(level, DiclLevel)
    assert isinstance(level.matcher, PairwiseMatcher)
    projection = copy.deepcopy(level.projection).to(torch.promote_types(dtype, torch.float32))
    context = None if level.context is None else FastContext(level.context, dtype)
    return DiclLevel(FactoredMatcher(level.matcher, dtype, memory_limit), projection, context)
