"""The accelerated network in plain torch operations: for CPUs; that for CUDA derives from it."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import pairwise, starmap
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..models import DiclFlow, InitialFlow, LevelFlow, has_matching_net
from ..models.blocks import ContextNet, ConvBlock
from ..models.dicl import DiclLevel, FeaturePyramid
from ..models.matching import Matcher, MatchingNet, PairwiseMatcher
from ..models.network import Pair
from ..ops import resize, size_of
from .first_layer import FactoredLayer
from .first_layer.cpu import PartialWindows
from .folded import (
    FoldedConv,
    cells_to_pixels,
    fold,
    folded,
    folded_block,
    folded_head,
    is_reduced,
    up_to_cells,
    up_to_corners,
    with_remainder,
)
from .settings import displacements_at_once, dtype_of_most, has_winograd, processor
from .warp import warp

_COARSE_IF_SUMMED = 16
_AT_ONCE = 6 << 20  # bytes of the first layer of the stem


class ScoreConv(nn.Module):
    """The last layer after `up_to_corners`, never below float32: a product for each tap.

    oneDNN would compute 16 channels, 15 of them unused: four times the work.
    """

    def __init__(self, conv: nn.Conv2d, dtype: torch.dtype) -> None:
        super().__init__()
        assert conv.bias is not None
        dtype = torch.promote_types(dtype, torch.float32)
        self.taps = nn.Buffer(conv.weight.detach()[0].permute(1, 2, 0).flatten(0, 1).to(dtype))
        self.bias = nn.Buffer(conv.bias.detach().to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4·in, H/2 + 1, W/2 + 1), channels last -> (B, H, W)."""
        corners = x.permute(0, 2, 3, 1).unflatten(3, (2, 2, -1)).transpose(2, 3)
        pixels = corners.to(self.taps.dtype, memory_format=torch.contiguous_format)
        products = self.taps @ pixels.flatten(0, 4).T
        batch, down, _, across = corners.shape[:4]
        return self._add(products.view(3, 3, batch, 2 * down, 2 * across)[..., 1:-1, 1:-1])

    def _add(self, products: Tensor) -> Tensor:
        """Add what each pixel adds to its neighbours: (3, 3, B, H, W) -> (B, H, W)."""
        left, rows, right = products.unbind(1)
        rows[..., 1:] += left[..., :-1]
        rows[..., :-1] += right[..., 1:]
        above, scores, below = rows.unbind(0)
        scores[:, 1:] += above[:, :-1]
        scores[:, :-1] += below[:, 1:]
        return scores.add_(self.bias)


class CellScoreConv(ScoreConv):
    """The last layer after `up_to_cells`, whose maps are in planes."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4·in, H/2, W/2) -> (B, H, W)."""
        batch, _, down, across = x.shape
        cells = x.to(self.taps.dtype).contiguous().view(batch, 4, -1, down * across)
        products = (self.taps @ cells).view(batch, 4 * 9, down, across)
        return self._add(cells_to_pixels(products).transpose(0, 1).unflatten(0, (3, 3)))


class FoldedMatcher(Matcher):
    """A `PairwiseMatcher` with a `MatchingNet`, accelerated: some displacements at a time.

    Its versions differ in how they compute the first layer.
    """

    def __init__(
        self, matcher: PairwiseMatcher, dtype: torch.dtype, memory_limit: int | None = None
    ) -> None:
        super().__init__(matcher.radius)
        net = matcher.net
        assert isinstance(net, MatchingNet)
        self.memory_limit = memory_limit
        most, by_cells = dtype_of_most(dtype), has_winograd()
        # with Winograd, products with zeros cost nothing
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
        count, size = side * side, size_of(features1)
        scores = self.score.bias.new_empty(count, len(features1), *size)
        for chunk, halved in self._halved(features1, features2):
            found = self.score(self.inner(halved)).unflatten(0, (len(chunk), -1))
            scores[chunk.start : chunk.stop] = found
        return scores.unflatten(0, (side, side)).permute(2, 0, 1, 3, 4).unsqueeze(1)

    @abstractmethod
    def _halved(self, features1: Tensor, features2: Tensor) -> Iterator[tuple[range, Tensor]]:
        """Yield displacements, and the output of the strided layer for all of them.

        (displacements · B, channels, H/2, W/2).
        """


def displacement_chunks(
    first_layer: Tensor, radius: int, memory_limit: int | None
) -> Iterator[range]:
    """Displacements that are computed together, by the first layer of one of them."""
    count = (2 * radius + 1) ** 2
    steps = -(-count // displacements_at_once(first_layer, memory_limit))
    return starmap(range, pairwise(count * step // steps for step in range(steps + 1)))


def moved_maxima(minus_first: Tensor, second: Tensor, chunk: range) -> Tensor:
    """max(B(p+u), -A(p)), the first layer minus A: (displacements · B, channels, H, W).

    -A is (B, channels, H, W), B (B, channels, H+2r, W+2r).
    """
    batch, channels, height, width = minus_first.shape
    side = second.shape[-1] - width + 1
    result = minus_first.new_empty(len(chunk) * batch, height, width, channels)
    result = result.permute(0, 3, 1, 2)  # channels last
    targets = result.unflatten(0, (-1, batch))
    moved = second.unfold(2, height, 1).permute(2, 0, 1, 4, 3)  # (V, B, channels, H, W+2r)
    for u in range(chunk[0] // side, chunk[-1] // side + 1):  # few calls, of all v each
        start, stop = max(chunk.start, u * side), min(chunk.stop, (u + 1) * side)
        maps = moved[start - u * side : stop - u * side, ..., u : u + width]
        torch.maximum(maps, minus_first, out=targets[start - chunk.start : stop - chunk.start])
    return result


class DirectMatcher(FoldedMatcher):
    """Computes the first layer from the pairs themselves: for matrix units.

    They take less time than to find and correct the partial windows of a factored layer.
    """

    def __init__(
        self, matcher: PairwiseMatcher, dtype: torch.dtype, memory_limit: int | None = None
    ) -> None:
        super().__init__(matcher, dtype, memory_limit)
        net = cast(MatchingNet, matcher.net)
        self.first, self.down = (folded_block(block, dtype) for block in (net.first, net.down))

    def _halved(self, features1: Tensor, features2: Tensor) -> Iterator[tuple[range, Tensor]]:
        first, second = (self.first.prepare(f).permute(0, 2, 3, 1) for f in (features1, features2))
        second = F.pad(second, (0, 0, *[self.radius] * 4))
        hidden = ~second.any(-1)
        layer = first.new_empty(*first.shape[:3], len(self.first.bias))
        for chunk in displacement_chunks(layer, self.radius, self.memory_limit):
            yield chunk, self.down(self.first(self._pairs(first, second, hidden, chunk)))

    def _pairs(self, first: Tensor, second: Tensor, hidden: Tensor, chunk: range) -> Tensor:
        """(B, H, W, C), (B, H+2r, W+2r, C), which of these are hidden -> (chunk · B, 2C, H, W)."""
        batch, height, width, channels = first.shape
        pairs = first.new_empty(len(chunk), batch, height, width, 2 * channels)
        pairs[..., :channels] = first
        gone = hidden.new_empty(pairs.shape[:-1])
        for number, displacement in enumerate(chunk):
            u, v = divmod(displacement, 2 * self.radius + 1)
            seen = (slice(None), slice(v, v + height), slice(u, u + width))
            pairs[number, ..., channels:] = second[seen]
            gone[number] = hidden[seen]
        pairs.flatten(0, 3)[gone.flatten().nonzero().squeeze(1)] = 0
        return pairs.flatten(0, 1).permute(0, 3, 1, 2)


class FactoredMatcher(FoldedMatcher):
    """A matcher whose first layer is factored: for processors without matrix units.

    The layer is max(A(p) + B(p+u), 0) = max(B(p+u), -A(p)) + A(p), the bias being in A.
    Its second term passes through the next convolution once for all displacements: what remains
    for each of them is one maximum.
    """

    def __init__(
        self, matcher: PairwiseMatcher, dtype: torch.dtype, memory_limit: int | None = None
    ) -> None:
        super().__init__(matcher, dtype, memory_limit)
        net = cast(MatchingNet, matcher.net)
        most = dtype_of_most(dtype)
        self.first = FactoredLayer(net.first, self.radius, most, negated=True)
        weight, bias = fold(net.down)
        self.down = FoldedConv(net.down.conv, weight, 0 * bias, dtype, relu=True)
        self.down_of_minus_first = FoldedConv(net.down.conv, weight, -bias, most, relu=False)

    def _halved(self, features1: Tensor, features2: Tensor) -> Iterator[tuple[range, Tensor]]:
        features1, features2 = map(self.first.prepare, (features1, features2))
        minus_first = self.down.prepare(self.first.first_term(features1))
        second = self.down.prepare(self.first.second_term(features2))
        partial = PartialWindows(self.first, features1, features2, minus_first)
        chunks = [*displacement_chunks(minus_first, self.radius, self.memory_limit)]
        most = max(map(len, chunks))
        less = _repeated(self.down.prepare(self.down_of_minus_first(minus_first)), most)
        for chunk in chunks:
            hidden = moved_maxima(minus_first, second, chunk)
            partial.correct(hidden, chunk)
            yield chunk, self.down(hidden, less[: len(hidden)])


def _matcher(
    matcher: PairwiseMatcher, dtype: torch.dtype, memory_limit: int | None
) -> FoldedMatcher:
    """The faster one of both, for this processor."""
    direct = dtype == torch.bfloat16 and processor().amx
    return (DirectMatcher if direct else FactoredMatcher)(matcher, dtype, memory_limit)


def _repeated(tensor: Tensor, times: int) -> Tensor:
    """Repeat along the batch, channels last; oneDNN is very slow at broadcasting."""
    return tensor.permute(0, 2, 3, 1).repeat(times, 1, 1, 1).permute(0, 3, 1, 2)


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


class StripStem(nn.Sequential):
    """The stem of the feature net, whose first two layers take some rows at a time.

    What the first one gives has eight times the numbers of a frame: too many for a cache.
    """

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, H, W) of even sides -> (B, C, H/2, W/2)."""
        first, _, last = cast(tuple[FoldedConv, ...], (*self,))
        height, width = size_of(image)
        of_two_rows = 2 * width * first.bias.nbytes
        step = 2 * max(1, _AT_ONCE // of_two_rows)
        bounds = [*range(0, height, step), height]
        frames = image.split(1)
        halved = [torch.cat([self._halved(f, *b) for b in pairwise(bounds)], 2) for f in frames]
        return last(torch.cat(halved))

    def _halved(self, frame: Tensor, top: int, bottom: int) -> Tensor:
        """The second layer for some rows of a frame; those that it sees beyond are added."""
        start, above, below = max(top - 2, 0), max(top - 3, 0), bottom + 1
        hidden = self[0](frame[:, :, above:below])[:, :, start - above : bottom - above]
        return self[1](hidden)[:, :, (top - start) // 2 :]


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
        small = resize(image, size_of(features))
        return self.layers(self._input(flow, entropy, features, small))

    def _input(self, flow: Tensor, entropy: Tensor, features: Tensor, image: Tensor) -> Tensor:
        """All (B, …, H, W), of one size -> the input of the first layer."""
        parts = [flow, entropy, features, image]
        if is_reduced(self.dtype):
            parts[0], remainder = with_remainder(flow, self.dtype)
            parts.append(remainder)
        return torch.cat([part.to(self.dtype) for part in parts], 1)


class CpuLevel(DiclLevel):
    """A `DiclLevel` with a faster warp."""

    warp = staticmethod(warp)


class AcceleratedDiclFlow(DiclFlow):
    """A `DiclFlow` for inference only: the same result, faster.

    Batch norms are folded, tensors are channels last, both images pass through the feature net
    together, the first layer of the matching net is factored. It stays on `device` (default: where
    `model` is).
    """

    _coarse = 64  # the least stride of a level that does not compute in bfloat16

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
        dtypes = (self._level_dtype(dtype, most, stride) for stride in model.config.strides)
        levels = [
            self._make_level(cast(DiclLevel, level), level_dtype, memory_limit)
            for level, level_dtype in zip(model.levels.values(), dtypes, strict=True)
        ]
        pyramid = self._make_pyramid(cast(FeaturePyramid, model.features), most)
        super().__init__(model.config, pyramid, *levels)
        self.to(device).eval()

    def forward(
        self, image1: Tensor, image2: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        both = torch.cat([image1, image2])
        return self.flow_from_pairs(self._halves(self.features(both)), image1, initial)

    def flow_from_pairs(
        self, pairs: Iterable[Pair], image1: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """See `FlowNetwork`."""
        if image1.device.type == "cpu":  # each level reduces it, in a fifth of the time
            image1 = image1.contiguous(memory_format=torch.channels_last)
        return super().flow_from_pairs(pairs, image1, initial)

    @classmethod
    def _level_dtype(cls, dtype: torch.dtype, most: torch.dtype, stride: int) -> torch.dtype:
        """Coarse levels cost little, and their rounding is multiplied by their stride."""
        # that of bfloat16 is too much at some, and where sums are float16 as well, at more of them
        if most != dtype:
            return most if stride >= _COARSE_IF_SUMMED else dtype
        return torch.float32 if dtype == torch.bfloat16 and stride >= cls._coarse else dtype

    @staticmethod
    def _make_level(level: DiclLevel, dtype: torch.dtype, memory_limit: int | None) -> DiclLevel:
        assert isinstance(level.matcher, PairwiseMatcher)
        projection = copy.deepcopy(level.projection).to(torch.promote_types(dtype, torch.float32))
        most, context = dtype_of_most(dtype), level.context
        context = None if context is None else FoldedContext(context, most)
        return CpuLevel(_matcher(level.matcher, dtype, memory_limit), projection, context)

    @staticmethod
    def _make_pyramid(pyramid: FeaturePyramid, dtype: torch.dtype) -> FeaturePyramid:
        accelerated = folded(pyramid, dtype)
        if is_reduced(dtype):
            accelerated.stem[0] = ImageConv(cast(ConvBlock, pyramid.stem[0]), dtype)
        accelerated.stem = StripStem(*accelerated.stem)
        return accelerated
