"""The accelerated network in plain torch operations: for CPUs; that for CUDA derives from it."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..models import DiclFlow, InitialFlow, LevelFlow, has_matching_net
from ..models.blocks import ConvBlock
from ..models.dicl import DiclLevel
from ..models.matching import Matcher, MatchingNet, PairwiseMatcher
from ..models.pyramid import FeaturePyramid
from .context.cpu import FoldedContext
from .first_layer import FactoredLayer
from .first_layer.cpu import PartialWindows
from .folded import FoldedConv, fold, folded, folded_block, is_reduced, up_to_cells, up_to_corners
from .score_layers.cpu import CellScoreConv, ScoreConv
from .settings import displacements_at_once, dtype_of_most, has_winograd
from .stem.cpu import ImageConv

_COARSE, _COARSE_IF_SUMMED = 32, 16


class FactoredMatcher(Matcher):
    """The accelerated version of a `PairwiseMatcher` with a `MatchingNet`.

    The first layer is max(A(p) + B(p+u), 0) = max(B(p+u), -A(p)) + A(p), the bias being in A.
    Its second term passes through the next convolution once for all displacements: what remains
    for each of them is one maximum.
    """

    def __init__(
        self, matcher: PairwiseMatcher, dtype: torch.dtype, memory_limit: int | None = None
    ) -> None:
        super().__init__()
        net = matcher.net
        assert isinstance(net, MatchingNet)
        self.radius, self.memory_limit = matcher.radius, memory_limit
        most = dtype_of_most(dtype)
        self.first = FactoredLayer(net.first, matcher.radius, most, negated=True)
        weight, bias = fold(net.down)
        self.down = FoldedConv(net.down.conv, weight, 0 * bias, dtype, relu=True)
        self.down_of_minus_first = FoldedConv(net.down.conv, weight, -bias, most, relu=False)
        by_cells = has_winograd()  # then products with zeros cost nothing
        weight, bias = (up_to_cells if by_cells else up_to_corners)(*fold(net.up))
        around = nn.Conv2d(weight.shape[1], len(weight), weight.shape[-1], padding=1)
        self.inner = nn.Sequential(
            *(folded_block(block, most) for block in net.inner),
            FoldedConv(around, weight, bias, most, relu=True),
        )
        self.score = (CellScoreConv if by_cells else ScoreConv)(net.score, dtype)

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps of even sides -> (B, 1, U, V, H, W)."""
        side = 2 * self.radius + 1
        features1, features2 = map(self.first.prepare, (features1, features2))
        minus_first = self.down.prepare(self.first.first_term(features1))
        second = self.down.prepare(self.first.second_term(features2))
        partial = PartialWindows(self.first, features1, features2, minus_first)
        batch, _, height, width = features1.shape
        step = min(displacements_at_once(minus_first, self.memory_limit), side * side)
        less = _repeated(self.down.prepare(self.down_of_minus_first(minus_first)), step)
        scores = self.score.bias.new_empty(side * side, batch, height, width)
        for start in range(0, side * side, step):
            chunk = range(start, min(start + step, side * side))
            hidden = self._first_layer(minus_first, second, partial, chunk)
            hidden = self.down(hidden, less[: len(hidden)])
            scores[chunk.start : chunk.stop] = self.score(self.inner(hidden)).unflatten(
                0, (len(chunk), batch)
            )
        return scores.unflatten(0, (side, side)).permute(2, 0, 1, 3, 4).unsqueeze(1)

    def _first_layer(
        self, minus_first: Tensor, second: Tensor, partial: PartialWindows, chunk: range
    ) -> Tensor:
        """Return the first layer minus A: (displacements · B, channels, H, W)."""
        side = 2 * self.radius + 1
        batch, channels, height, width = minus_first.shape
        result = torch.empty(
            (len(chunk) * batch, channels, height, width),
            dtype=minus_first.dtype,
            device=minus_first.device,
            memory_format=torch.channels_last,
        )
        for displacement, target in zip(chunk, result.split(batch), strict=True):
            u, v = divmod(displacement, side)
            moved = second[..., v : v + height, u : u + width]
            torch.maximum(moved, minus_first, out=target)
        partial.correct(result, chunk)
        return result


def _repeated(tensor: Tensor, times: int) -> Tensor:
    """Repeat along the batch, channels last; oneDNN is very slow at broadcasting."""
    return tensor.permute(0, 2, 3, 1).repeat(times, 1, 1, 1).permute(0, 3, 1, 2)


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

    That of bfloat16 is too much at some, and where sums are float16 as well, at more of them.
    """
    if most != dtype:
        return most if stride >= _COARSE_IF_SUMMED else dtype
    return torch.float32 if dtype == torch.bfloat16 and stride >= _COARSE else dtype
