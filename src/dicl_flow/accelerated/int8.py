"""int8, for x86 processors that multiply bytes (VNNI) but lack AMX.

Activations are uint8 with one scale for each channel, weights int8 with one for each output
channel. The scales follow from what float32 computes on a few small frames: these extremes are kept
with the weights.

Quality "normal" computes the matching nets of fine levels in int8, behind the terms of their first
layer. Quality "live" computes everything in it that neither sees a flow nor gives one.
"""

import copy
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..models import DiclFlow
from ..models.blocks import ContextNet, ConvBlock
from ..models.dicl import DiclLevel, FeaturePyramid
from ..models.matching import Matcher, MatchingNet, PairwiseMatcher
from ..ops import size_of
from .cpu import AcceleratedDiclFlow, displacement_chunks, moved_maxima
from .extremes import Extremes, blocks_behind_first, middle_layers
from .first_layer.cpu import ROUND, find_partial, products
from .folded import FoldedConv, cells_to_pixels, corners_inside, fold, up_to_corners
from .private import int8_convolve, int8_order

_MARGIN = 1.25  # what other frames may exceed the extremes by; beyond, values are cut off
_COARSEST = 16  # stride: coarser levels take little time, and their rounding is multiplied by it
_GREY = 128  # of a frame: nearly zero


class Int8Conv(nn.Module):
    """A convolution of uint8 by int8: with ReLU to uint8; the last one to float32, without."""

    def __init__(
        self,
        where: tuple[int, int, int],
        weight: Tensor,
        bias: Tensor,
        scale: Tensor,
        next_scale: Tensor | None,
    ) -> None:
        """Stride, padding, dilation; the scales of the channels of the input and of the output."""
        super().__init__()
        self.where = ([where[0]] * 2, [where[1]] * 2, [where[2]] * 2)
        divisor = torch.ones(len(weight)) if next_scale is None else next_scale
        weight = weight.float() * scale[:, None, None] / divisor[:, None, None, None]
        steps = weight.abs().amax((1, 2, 3)).clamp(min=1e-30) / 127
        self.weight = nn.Buffer((weight / steps[:, None, None, None]).round().to(torch.int8))
        self.steps, self.bias = nn.Buffer(steps), nn.Buffer(bias.float() / divisor)
        self.zero = nn.Buffer(torch.zeros(len(weight), dtype=torch.int32))
        self.last = next_scale is None
        self._ordered: dict[torch.Size, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'), channels last."""
        ordered = self._ordered.get(x.shape)
        if ordered is None:
            if len(self._ordered) >= 16:  # frames keep their size, windows vary in number
                self._ordered.clear()
            ordered = int8_order(self.weight, self.steps, self.where, list(x.shape))
            self._ordered[x.shape] = ordered
        known = (ordered, self.steps, self.zero, self.bias, self.where)
        return int8_convolve(x, *known, last=self.last)


class RoundedConv(nn.Module):
    """A convolution in float32, with ReLU to uint8; it may be a term of the first layer."""

    def __init__(self, padding: int, weight: Tensor, bias: Tensor, next_scale: Tensor) -> None:
        """The scales of the channels of the output."""
        super().__init__()
        channels, depth, side, _ = weight.shape
        weight = (weight / next_scale[:, None, None, None]).float()
        like = nn.Conv2d(depth, channels, side, padding=padding)
        bias = bias / next_scale + 0.5  # `to` cuts digits off
        self.conv = FoldedConv(like, weight, bias, torch.float32, relu=False)
        self.taps = nn.Buffer(weight.permute(2, 3, 1, 0).flatten(0, 2))

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'), channels last."""
        return self.conv(x).clamp_(0, 255).to(torch.uint8)

    def of_windows(self, rows: Tensor) -> Tensor:
        """(N, window² · in) windows that see maps -> (N, out)."""
        return torch.addmm(self.conv.bias, rows, self.taps).clamp_(0, 255).to(torch.uint8)


class Int8Term(Int8Conv):
    """A term of the first layer, of features in uint8."""

    def __init__(self, weight: Tensor, bias: Tensor, scale: Tensor, next_scale: Tensor) -> None:
        super().__init__((1, 0, 1), weight, bias, scale, next_scale)
        rows = weight.permute(0, 2, 3, 1).flatten(1)[..., None, None]
        scales = scale.repeat(weight[0, 0].numel())
        self.rows = Int8Conv((1, 0, 1), rows, bias, scales, next_scale)

    def of_windows(self, rows: Tensor) -> Tensor:
        """(N, window² · in) windows that see maps, N a multiple of `ROUND` -> (N, out)."""
        image = rows.unflatten(0, (1, -1, ROUND)).permute(0, 3, 1, 2)
        return self.rows(image).permute(0, 2, 3, 1).flatten(0, 2)


_Term: TypeAlias = RoundedConv | Int8Term


class Int8FirstLayer(nn.Module):
    """The first layer of a matching net, factored: its terms and partial windows in uint8.

    Both terms share scale and zero, so max(B, -A) + A is exact in uint8, and 0 stays 0.
    """

    def __init__(
        self, layer: ConvBlock, radius: int, extremes: Tensor, features: Tensor | None
    ) -> None:
        """The extremes of both terms, see `Extremes`; the largest values of the features.

        Without the latter, terms are computed in float32.
        """
        super().__init__()
        weight, bias = fold(layer)
        of_first, of_second = weight.chunk(2, 1)
        self.radius, self.window = radius, weight.shape[-1]
        reach = extremes[1] - extremes[0]
        low = extremes[0] - reach * (_MARGIN - 1) / 2
        self.scale = nn.Buffer(_scale(_MARGIN * reach))
        minus_first, second = (-of_first, -bias - low), (of_second, -low)
        self.prepare: nn.Module
        self.minus_first: _Term
        self.second: _Term
        if features is None:
            self.prepare = nn.Identity()
            self.minus_first = RoundedConv(0, *minus_first, self.scale)
            self.second = RoundedConv(0, *second, self.scale)
        else:
            self.prepare, scale = Quantised(features), _scale(_MARGIN * features)
            self.minus_first = Int8Term(*minus_first, scale, self.scale)
            self.second = Int8Term(*second, scale, self.scale)

    def forward(self, features1: Tensor, features2: Tensor) -> tuple[Tensor, Tensor, "Int8Windows"]:
        """Two (B, C, H, W) -> -A (B, channels, H, W), B (B, channels, H+2r, W+2r), the windows."""
        margin = self.window // 2
        first = F.pad(self.prepare(features1), [margin] * 4)
        second = F.pad(self.prepare(features2), [self.radius + margin] * 4)
        rows = torch.cat([maps.permute(0, 2, 3, 1).flatten(0, 2) for maps in (first, second)])
        return self.minus_first(first), self.second(second), Int8Windows(self, features2, rows)


class Int8Windows:
    """Writes exact values where the sum of both terms is wrong."""

    def __init__(self, layer: Int8FirstLayer, features2: Tensor, rows: Tensor) -> None:
        """Features (B, C, H, W) of frame 2; the numbered ones that windows see, (N, C)."""
        self._count = prod(features2[:, 0].shape)
        self._kinds = [
            (
                terms,
                products(terms.taps1, rows, layer.minus_first.of_windows),
                products(terms.taps2, rows, layer.second.of_windows),
            )
            for terms in find_partial(features2, layer.radius, layer.window)
        ]

    def correct(self, result: Tensor, chunk: range) -> None:
        """Overwrite the first layer, (U·V·B, channels, H, W), of some displacements."""
        rows, start = result.permute(0, 2, 3, 1).flatten(0, 2), chunk.start * self._count
        for terms, first, second in self._kinds:
            part = slice(terms.bounds[chunk.start], terms.bounds[chunk.stop])
            minus_first = first.index_select(0, terms.first[part])
            values = torch.maximum(second.index_select(0, terms.second[part]), minus_first)
            places = terms.positions[part] - start
            _words(rows).index_copy_(0, places, _words(values.sub_(minus_first)))


def _words(rows: Tensor) -> Tensor:
    """Rows of bytes, eight to a number where that fits: a byte would take as long to copy."""
    return rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows


class Int8Matcher(Matcher):
    """A `PairwiseMatcher` in int8."""

    def __init__(
        self,
        matcher: PairwiseMatcher,
        first: Tensor,
        largest: Sequence[Tensor],
        memory_limit: int | None = None,
        features: Tensor | None = None,
    ) -> None:
        """The extremes of the first layer and of each that follows, see `Extremes`.

        `features` are for `Int8FirstLayer`.
        """
        super().__init__(matcher.radius)
        self.memory_limit = memory_limit
        net = cast(MatchingNet, matcher.net)
        self.first = Int8FirstLayer(net.first, self.radius, first, features)
        folded = [fold(net.down), *map(fold, net.inner), up_to_corners(*fold(net.up))]
        folded.append(_score_of_corners(net.score))
        places = [(2, 1, 1), *((1, 1, 1) for _ in folded[1:-1]), (1, 0, 1)]
        steps = [_scale(_MARGIN * one) for one in largest]
        scales = zip([self.first.scale, *steps], [*steps, None], strict=True)
        self.layers = nn.Sequential(
            *(
                Int8Conv(place, *values, *pair)
                for place, values, pair in zip(places, folded, scales, strict=True)
            )
        )

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps of even sides -> (B, 1, U, V, H, W)."""
        side = 2 * self.radius + 1
        minus_first, second, windows = self.first(features1, features2)
        batch, (height, width) = len(features1), size_of(features1)
        scores = features1.new_empty(side * side, batch, height, width)
        for chunk in displacement_chunks(minus_first, self.radius, self.memory_limit):
            hidden = moved_maxima(minus_first, second, chunk)
            hidden.unflatten(0, (-1, batch)).sub_(minus_first)  # max(B, -A) + A
            windows.correct(hidden, chunk)
            cells = self.layers[-1](corners_inside(self.layers[:-1](hidden)))
            scores[chunk.start : chunk.stop] = (
                cells_to_pixels(cells).unflatten(0, (len(chunk), batch)).squeeze(2)
            )
        return scores.unflatten(0, (side, side)).permute(2, 0, 1, 3, 4).unsqueeze(1)


def _score_of_corners(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """The last layer from corners to the four scores of each coarse pixel: (4, 4·in, 2, 2), (4,).

    A score and its neighbours lie around two corners along each axis.
    """
    assert conv.bias is not None
    weight = conv.weight.detach()[0]  # (in, 3, 3)
    cells = weight.new_zeros(2, 2, 2, 2, len(weight), 2, 2)  # scores, pixels of a corner, corners
    for p, q, down, across in product(range(2), range(2), range(3), range(3)):
        (i, a), (j, b) = divmod(p + down, 2), divmod(q + across, 2)
        cells[p, q, a, b, :, i, j] = weight[:, down, across]
    return cells.flatten(0, 1).flatten(1, 3), conv.bias.detach().repeat(4)


def _scale(reach: Tensor) -> Tensor:
    """(C,) ranges -> the step of uint8; channels that are always zero get any."""
    return reach.clamp(min=1e-6) / 255


class Int8Block(nn.Module):
    """A block in int8: uint8 to uint8; the last one to float32."""

    def __init__(self, block: ConvBlock, largest: Tensor, *, last: bool) -> None:
        """The largest values of all channels that it sees, then of those that it gives."""
        super().__init__()
        conv = cast(nn.Conv2d | nn.ConvTranspose2d, block.conv)
        scale, next_scale = _scale(_MARGIN * largest).split([conv.in_channels, conv.out_channels])
        weight, bias = fold(block)
        where = (int(conv.stride[0]), int(conv.padding[0]), int(conv.dilation[0]))
        self.up = isinstance(conv, nn.ConvTranspose2d)
        if self.up:
            weight, bias = up_to_corners(weight, bias)
            where, next_scale = (1, 1, 1), next_scale.repeat(4)
        self.scale = nn.Buffer(scale)
        self.conv = Int8Conv(where, weight, bias, scale, None if last else next_scale)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W')."""
        y = self.conv(x)
        if self.conv.last:
            return y.relu_()
        return corners_to_pixels(y) if self.up else y


class Int8ImageConv(Int8Conv):
    """The very first layer, a 3x3 convolution of frames in uint8."""

    def __init__(self, block: ConvBlock, next_scale: Tensor) -> None:
        weight, bias = fold(block)
        step = torch.full((weight.shape[1],), 1 / 127.5)
        super().__init__((1, 0, 1), weight, bias - weight.sum((1, 2, 3)), step, next_scale)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) in [-1, 1] -> (B, out, H, W)."""
        batch, channels, height, width = images.shape
        padded = (batch, height + 2, width + 2, channels)
        frames = images.new_full(padded, _GREY, dtype=torch.uint8).permute(0, 3, 1, 2)
        steps = torch.add(images.new_tensor(_GREY), images, alpha=127.5)  # 0.5 more: `to` cuts off
        frames[..., 1:-1, 1:-1] = steps.to(torch.uint8)
        return super().forward(frames)


class Quantised(nn.Module):
    """The step from float32 to uint8."""

    def __init__(self, largest: Tensor) -> None:
        super().__init__()
        self.scale = nn.Buffer(_scale(_MARGIN * largest))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W), nowhere negative -> the same in uint8, channels last."""
        steps = (x.permute(0, 2, 3, 1) / self.scale).add_(0.5).clamp_(max=255)
        return steps.to(torch.uint8).permute(0, 3, 1, 2)


def corners_to_pixels(corners: Tensor) -> Tensor:
    """(B, 4·C, H + 1, W + 1) -> (B, C, 2H, 2W), both channels last."""
    pixels = corners.permute(0, 2, 3, 1).unflatten(3, (2, 2, -1)).transpose(2, 3)
    batch, down, _, across, _, channels = pixels.shape
    return pixels.reshape(batch, 2 * down, 2 * across, channels)[:, 1:-1, 1:-1].permute(0, 3, 1, 2)


class Int8DiclFlow(AcceleratedDiclFlow):
    """An `AcceleratedDiclFlow` in int8: the matching nets of fine levels.

    `widely` adds all levels, the feature net, and the context nets except for the layers that see
    the flow or give it.
    """

    def __init__(
        self,
        model: DiclFlow,
        extremes: Extremes,
        memory_limit: int | None = None,
        *,
        widely: bool = False,
    ) -> None:
        super().__init__(model, torch.float32, memory_limit, torch.device("cpu"))
        if widely:
            self.features = _int8_pyramid(model.features, extremes).eval()
        for stride, level in cast(Iterable[tuple[str, DiclLevel]], model.levels.items()):
            mine = cast(DiclLevel, self.levels[stride])
            if widely or int(stride) <= _COARSEST:
                matcher = _int8_matcher(
                    stride, level.matcher, extremes, memory_limit, widely=widely
                )
                mine.matcher = matcher.eval()
            if widely and level.context is not None and mine.context is not None:
                layers = _int8_layers(stride, level.context, mine.context, extremes)
                mine.context.layers = layers.eval()


def _int8_matcher(
    stride: str, matcher: Matcher, extremes: Extremes, memory_limit: int | None, *, widely: bool
) -> Int8Matcher:
    assert isinstance(matcher, PairwiseMatcher)
    first, *largest = _extremes_of(matcher, stride, extremes)
    features = None
    if widely:
        compared = cast(nn.Conv2d, cast(MatchingNet, matcher.net).first.conv).in_channels // 2
        features = extremes[f"features.outputs.{stride}"][-compared:].float()
    return Int8Matcher(matcher, first, largest, memory_limit, features)


def _int8_pyramid(pyramid: nn.Module, extremes: Extremes) -> nn.Module:
    """Copy a feature net with its blocks in int8."""
    replaced: dict[int, nn.Module] = {}
    for name, block in blocks_behind_first(pyramid, ConvBlock):
        last = name.startswith("outputs.")
        replaced[id(block)] = _int8_block(f"features.{name}", block, extremes, last=last)
    first, second, _ = cast(FeaturePyramid, pyramid).stem
    seen = cast(Int8Block, replaced[id(second)]).scale
    replaced[id(first)] = Int8ImageConv(cast(ConvBlock, first), seen)
    return copy.deepcopy(pyramid, replaced)


def _int8_layers(
    stride: str, context: ContextNet, accelerated: ContextNet, extremes: Extremes
) -> nn.Sequential:
    """Those of an accelerated context net, the middle ones in int8."""
    blocks, layers = middle_layers(context), [*accelerated.layers]
    for number, block in blocks.items():
        last, name = number == max(blocks), f"{stride}.context.{number}"
        layers[number] = _int8_block(name, cast(ConvBlock, block), extremes, last=last)
    if blocks:
        first = cast(ConvBlock, context.layers[0])
        layers[0] = RoundedConv(1, *fold(first), cast(Int8Block, layers[1]).scale)
    return nn.Sequential(*layers)


def _int8_block(name: str, block: ConvBlock, extremes: Extremes, *, last: bool) -> Int8Block:
    conv = cast(nn.Conv2d | nn.ConvTranspose2d, block.conv)
    (largest,) = _fitting(extremes, [name], [(conv.in_channels + conv.out_channels,)])
    return Int8Block(block, largest, last=last)


def _extremes_of(matcher: PairwiseMatcher, stride: str, extremes: Extremes) -> list[Tensor]:
    """Those of a level, layer after layer."""
    net = cast(MatchingNet, matcher.net)
    widths = [len(fold(block)[1]) for block in (net.first, net.down, *net.inner)]
    shapes = [(2, widths[0]), *((width,) for width in widths[1:]), (4 * len(fold(net.up)[1]),)]
    return _fitting(extremes, [f"{stride}.{number}" for number in range(len(shapes))], shapes)


def _fitting(
    extremes: Extremes, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[Tensor]:
    """Return those of these names, which must have these shapes."""
    found = [extremes[name] for name in names if name in extremes]
    if [tuple(layer.shape) for layer in found] != [*shapes]:
        raise InputError(
            "what the weights say of precision int8 does not fit their network; "
            "run 'dicl-flow calibrate' on them again"
        )
    return [layer.float() for layer in found]
