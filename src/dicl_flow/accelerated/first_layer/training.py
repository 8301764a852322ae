"""The first layer in training, factored both ways; the same input gives the same bits.

With batch norm and ReLU, only their result is written: the layer is computed again from its terms
whenever it is needed (`tiles`), except for partial windows. Backward, the gradients of F1 and F2
are the products of the two sums of `tiles` with the weights; that of the weights is the product of
the sums with F1 and F2. Matching nets that are not factored get their input in one pass:
`pair_windows`.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import InputError
from ...models.matching import MatchingNet, PairwiseMatcher
from ..batch_norm import AcceleratedConvBlock, frozen_statistics, merge_moments
from ..kernels import autocast_dtype, check, in_rows, kernel, new_map, tile_shape, tl, triton
from .cuda import ALL, add_terms, correct, find_visible_taps
from .tiles import moments, sum_displacements, through_norm

_TALL, _WIDE = 4, 8  # pixels of a tile: a compact one seldom meets a border
_COLUMNS = 32  # channels of a program: 16 bytes for each thread
_FEW = 16  # channels of a program with nine sums: more do not fit into registers
_GROUPS = 176  # of programs that share the tiles: for 96 channels, four on each of 132 processors
_LAST = torch.channels_last
_PAIR_STAGES = tl.constexpr(3)  # displacements that are loaded at a time, of pairs
_PAIR_TILE = 2048  # elements: 16 for each thread, two 16-byte accesses in half precision


def _term_maps(features: tuple[Tensor, Tensor], weight: Tensor, radius: int) -> Tensor:
    """(2B, channels, H+2r, W+2r): what frame 2 adds to the layer, and behind it frame 1."""
    weights = weight.to(features[0].dtype).chunk(2, 1)
    terms = [F.conv2d(features[i], weights[i], padding=1 + radius) for i in (1, 0)]
    return torch.cat(terms).contiguous(memory_format=_LAST)


def _find_taps(visible: Tensor, radius: int) -> tuple[Tensor, Tensor, Tensor]:
    """Visible taps of frame 2, then those of frame 1 that are in the image; a counter is last.

    Between them, where a pixel of either, or its match for some displacement, lacks a tap.
    """
    seen, counters = find_visible_taps(torch.cat([visible, torch.ones_like(visible)]), radius)
    _, height, width = visible.shape
    missing = (seen != ALL.value).float()
    own = missing.roll(len(visible), 0)[:, radius : radius + height, radius : radius + width]
    return seen, torch.maximum(F.max_pool2d(missing, 2 * radius + 1, 1), own), counters[0]


def _corrected(
    features: tuple[Tensor, Tensor], seen: Tensor, counter: Tensor, weight: Tensor, radius: int
) -> Tensor:
    """Memory for the layer, in which only partial windows are written."""
    batch, _, height, width = features[0].shape
    every = range((2 * radius + 1) ** 2)
    result = new_map((len(every) * batch, len(weight), height, width), features[0])
    taps = weight.to(result.dtype).permute(2, 3, 1, 0).flatten(0, 2).contiguous()
    correct(result, features, seen, counter, taps, None, every)
    return result


def _tiles(size: tuple[int, int, int], ring: int) -> int:
    """The number of tiles of all images, with a `ring` around each."""
    batch, height, width = size
    return batch * triton.cdiv(height + 2 * ring, _TALL) * triton.cdiv(width + 2 * ring, _WIDE)


def _shape(size: tuple[int, int, int], radius: int, channels: int, columns: int) -> dict[str, int]:
    """The shape of a layer, and how the kernels divide it."""
    batch, height, width = size
    layer = {"batch": batch, "height": height, "width": width, "radius": radius}
    return {**layer, "channels": channels, "tall": _TALL, "wide": _WIDE, "columns": columns}


def _sums(
    gradient: Tensor,
    layer: tuple[Tensor | None, Tensor, Tensor | None, Tensor],
    norm: tuple[Tensor | None, ...],
    radius: int,
) -> Tensor:
    """(2, B·H·W, 9·channels): what the gradients of F1 and F2 are linear in."""
    gradient, stride = in_rows(gradient)
    _, channels, height, width = gradient.shape
    size = (len(layer[1]) // 2, height, width)
    sums = gradient.new_empty((2, math.prod(size), 9 * channels))
    maps = (*layer, gradient, sums, *norm)
    for whole, columns in ((True, _COLUMNS), (False, _FEW)):
        programs = 2 * _tiles(size, 1) * triton.cdiv(channels, columns)
        shape = _shape(size, radius, channels, columns)
        sum_displacements[(programs,)](*maps, stride=stride, whole=whole, **shape)
    return sums


def _gradients(
    sums: Tensor, features: tuple[Tensor, Tensor], weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of both maps and of the weight."""
    batch, depth, height, width = features[0].shape
    rounded = weight.to(sums.dtype).unflatten(1, (2, depth))
    rounded = rounded.permute(1, 3, 4, 0, 2).flatten(1, 3)  # (2, 9·channels, C)
    of_features = torch.bmm(sums, rounded).unflatten(1, (batch, height, width))
    # a product for each row of pixels: enough of them for a GPU, and summed in float32
    rows = torch.stack([each.permute(0, 2, 3, 1) for each in features]).flatten(0, 2)
    of_rows = torch.bmm(sums.view(-1, width, sums.shape[-1]).mT, rows).unflatten(0, (2, -1))
    of_weight = of_rows.sum(1, dtype=torch.float32)  # (2, 9·channels, C)
    of_weight = of_weight.unflatten(1, (3, 3, -1)).permute(3, 0, 4, 1, 2).flatten(1, 2)
    of_first, of_second = of_features.permute(0, 1, 4, 2, 3)
    return of_first, of_second, of_weight.to(weight.dtype)


class _PairLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features1: Tensor, features2: Tensor, visible: Tensor, weight: Tensor, radius: int
    ) -> Tensor:
        features = (features1, features2)
        seen, lacking, counter = _find_taps(visible, radius)
        batch, _, height, width = features1.shape
        second, first = _term_maps(features, weight, radius).split(batch)
        first = first[..., radius : radius + height, radius : radius + width]
        result = _corrected(features, seen, counter, weight, radius)
        terms = (first.contiguous(memory_format=_LAST), second)
        add_terms(result, terms, seen, None, range((2 * radius + 1) ** 2))
        ctx.save_for_backward(*features, weight, seen, lacking)
        ctx.radius = radius
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features1, features2, weight, seen, lacking = ctx.saved_tensors
        sums = _sums(gradient, (None, seen, None, lacking), (None,) * 4, ctx.radius)
        of_first, of_second, of_weight = _gradients(sums, (features1, features2), weight)
        return of_first, of_second, None, of_weight, None


class _PairNormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features1: Tensor,
        features2: Tensor,
        visible: Tensor,
        weight: Tensor,
        radius: int,
        factor: Tensor,
        bias: Tensor,
        batch_norm: nn.BatchNorm2d,
    ) -> Tensor:
        features = (features1, features2)
        seen, lacking, counter = _find_taps(visible, radius)
        corrected = _corrected(features, seen, counter, weight, radius)
        layer = (_term_maps(features, weight, radius), seen, corrected, lacking)
        result = torch.empty_like(corrected)
        size = (len(visible), *result.shape[2:])
        channels, tiles = len(weight), _tiles(size, 0)
        groups, blocks = min(tiles, _GROUPS), triton.cdiv(channels, _COLUMNS)
        shape = _shape(size, radius, channels, _COLUMNS)
        if batch_norm.training:
            partial = result.new_empty(3, groups, channels, dtype=torch.float32)
            moments[(groups * blocks,)](*layer, partial, **shape)
            statistics = merge_moments(partial, batch_norm)
        else:
            statistics = frozen_statistics(batch_norm)
        norm = (statistics, factor, bias)
        through_norm[(tiles * blocks,)](*layer, None, result, *norm, stride=0, **shape)
        ctx.save_for_backward(*features, weight, *layer, *norm)
        ctx.radius, ctx.frozen = radius, not batch_norm.training
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features1, features2, weight, *kept = ctx.saved_tensors
        layer, norm = tuple(kept[:4]), tuple(kept[4:])
        gradient, stride = in_rows(gradient)
        channels, size = len(weight), (len(features1), *gradient.shape[2:])
        tiles = _tiles(size, 0)
        partial = gradient.new_empty(2, tiles, channels, dtype=torch.float32)
        shape = _shape(size, ctx.radius, channels, _COLUMNS)
        grid = (tiles * triton.cdiv(channels, _COLUMNS),)
        through_norm[grid](*layer, gradient, partial, *norm, stride=stride, **shape)
        of_norm = partial.sum(1)
        of_norm[1] *= norm[0][1]
        norm_sums = torch.zeros_like(of_norm) if ctx.frozen else of_norm
        sums = _sums(gradient, layer, (*norm, norm_sums), ctx.radius)
        of_first, of_second, of_weight = _gradients(sums, (features1, features2), weight)
        of_bias, of_factor = of_norm
        return of_first, of_second, None, of_weight, None, of_factor, of_bias, None


def _prepared(features1: Tensor, features2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both maps in the precision of autocast, and where the second is visible."""
    dtype = autocast_dtype(features1)
    visible = (features2 != 0).any(1).to(torch.int8)
    return features1.to(dtype), features2.to(dtype), visible


def pair_layer(features1: Tensor, features2: Tensor, weight: Tensor, radius: int) -> Tensor:
    """Convolve every pixel of `features1` with each of its displacements in `features2`.

    Two (B, C, H, W) maps, channels last, and a (channels, 2C, 3, 3) weight -> the convolution of
    what `pair_windows` gives, with zeros around each map, but ordered (U·V·B, channels, H, W).
    Its precision is that of autocast, or else of the features.
    """
    return _PairLayer.apply(*_prepared(features1, features2), weight, radius)


def pair_norm_relu(
    features1: Tensor, features2: Tensor, weight: Tensor, radius: int, norm: nn.BatchNorm2d
) -> Tensor:
    """`norm_relu` of `pair_layer`, which is neither written nor, where it is two terms, rounded."""
    prepared = _prepared(features1, features2)
    return _PairNormRelu.apply(*prepared, weight, radius, norm.weight, norm.bias, norm)


@triton.jit
def _shifted(pixel, u, v, height, width):
    """The flat index of `pixel` + (u, v), and whether that lies in the image."""
    x, y = pixel % width + u, pixel // width + v
    return y * width + x, (x >= 0) & (x < width) & (y >= 0) & (y < height)


@kernel()
def _build(
    features1,
    features2,
    pairs,
    visible,
    channels,
    height,
    width,
    num_tiles,
    radius: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """One displacement of one tile of pixels; also writes `visible` (B, H, W)."""
    side: tl.constexpr = 2 * radius + 1
    item = tl.program_id(0) // num_tiles  # (b·U + u)·V + v
    batch = (item // (side * side)).to(tl.int64)
    u, v = item // side % side - radius, item % side - radius
    pixel = (tl.program_id(0) % num_tiles) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)[None, :]
    in_tile = pixel < height * width
    other, in_image = _shifted(pixel, u, v, height, width)

    mask = in_tile[:, None] & (column < channels)
    maps = batch * height * width
    moved = tl.load(
        features2 + maps * channels + other[:, None] * channels + column,
        mask & in_image[:, None],
        0.0,
    )
    seen = tl.max((moved != 0.0).to(tl.int32), 1)
    place = pixel[:, None] * channels + column
    mine = tl.load(features1 + maps * channels + place, mask & (seen[:, None] > 0), 0.0)

    target = pairs + item.to(tl.int64) * height * width * 2 * channels
    target += pixel[:, None] * (2 * channels) + column
    tl.store(target, mine, mask)
    tl.store(target + channels, moved, mask)
    if item % (side * side) == side * side // 2:  # not displaced
        tl.store(visible + maps + pixel, seen.to(tl.int8), in_tile)


@kernel()
def _collect(
    gradient,
    visible,
    gradient1,
    gradient2,
    channels,
    height,
    width,
    num_tiles,
    stride,
    radius: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Gradients of a tile of pixels, summed over all displacements."""
    side: tl.constexpr = 2 * radius + 1
    batch = (tl.program_id(0) // num_tiles).to(tl.int64)
    pixel = (tl.program_id(0) % num_tiles) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)[None, :]
    in_tile = pixel < height * width
    known = column < channels
    maps = batch * height * width
    first = tl.zeros((rows, columns), tl.float32)
    second = tl.zeros((rows, columns), tl.float32)
    for index in tl.range(side * side, num_stages=_PAIR_STAGES):
        u, v = index // side - radius, index % side - radius
        source = gradient + (batch * side * side + index) * height * width * stride
        other, in_image = _shifted(pixel, u, v, height, width)
        seen = tl.load(visible + maps + other, in_tile & in_image, 0) > 0
        place = pixel[:, None] * stride + column
        value = tl.load(source + place, in_tile[:, None] & known, 0.0).to(tl.float32)
        first += tl.where(seen[:, None], value, 0.0)
        # this pixel was the candidate of the pixel at -(u, v) from it
        other, in_image = _shifted(pixel, -u, -v, height, width)
        place = other[:, None] * stride + channels + column
        mask = (in_tile & in_image)[:, None] & known
        second += tl.load(source + place, mask, 0.0).to(tl.float32)
    place = maps * channels + pixel[:, None] * channels + column
    mask = in_tile[:, None] & known
    tl.store(gradient1 + place, first.to(gradient1.dtype.element_ty), mask)
    tl.store(gradient2 + place, second.to(gradient2.dtype.element_ty), mask)


def _pair_tiles(channels: int, num_pixels: int) -> tuple[int, dict[str, int]]:
    """The number of tiles of an image, and their shape."""
    shape = tile_shape(channels, _PAIR_TILE)
    return triton.cdiv(num_pixels, shape["rows"]), shape


class _PairWindows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features1: Tensor, features2: Tensor, radius: int) -> Tensor:
        batch, channels, height, width = features1.shape
        num_items = batch * (2 * radius + 1) ** 2
        num_tiles, shape = _pair_tiles(channels, height * width)
        visible = features1.new_empty((batch, height, width), dtype=torch.int8)
        pairs = new_map((num_items, 2 * channels, height, width), features1)
        size = (channels, height, width, num_tiles)
        _build[(num_items * num_tiles,)](
            features1, features2, pairs, visible, *size, radius=radius, **shape
        )
        ctx.save_for_backward(visible)
        ctx.radius = radius
        return pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (visible,) = ctx.saved_tensors
        batch, height, width = visible.shape
        channels = gradient.shape[1] // 2
        gradient, stride = in_rows(gradient)
        num_tiles, shape = _pair_tiles(channels, height * width)
        gradients = [new_map((batch, channels, height, width), gradient) for _ in range(2)]
        size = (channels, height, width, num_tiles, stride)
        _collect[(batch * num_tiles,)](
            gradient, visible, *gradients, *size, radius=ctx.radius, **shape
        )
        return (*gradients, None)


def pair_windows(features1: Tensor, features2: Tensor, radius: int) -> Tensor:
    """Two (B, C, H, W) maps -> (B·U·V, 2C, H, W), all channels last.

    Each pixel of `features1` concatenated with the pixel of `features2` at distance (u, v); both
    zero where the latter is outside the image or all zero.
    """
    check(features1)
    check(features2)
    if features1.shape != features2.shape or features1.dtype != features2.dtype:
        raise InputError(
            f"both feature maps must have one shape and precision, got {tuple(features1.shape)} "
            f"{features1.dtype} and {tuple(features2.shape)} {features2.dtype}"
        )
    return _PairWindows.apply(features1, features2, radius)


class AcceleratedPairwiseMatcher(PairwiseMatcher):
    """A `PairwiseMatcher` whose pairs are written by one kernel; for a `MatchingNet`, by none."""

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> (B, 1, U, V, H, W)."""
        if type(self.net) is not MatchingNet:
            return super().forward(features1, features2)
        first = self.net.first
        assert isinstance(first, AcceleratedConvBlock)
        weight = first.conv.weight
        assert isinstance(weight, Tensor)
        map1, map2 = _channels_last(features1, features2)
        norm = first.fused_norm()
        if norm is None:
            score = first.finish(pair_layer(map1, map2, weight, self.radius))
        else:
            score = pair_norm_relu(map1, map2, weight, self.radius, norm)
        for layer in list(self.net)[1:]:
            score = layer(score)
        batch, _, height, width = features1.shape
        side = 2 * self.radius + 1
        score = score[..., :height, :width].unflatten(0, (side, side, batch))
        return score.permute(2, 3, 0, 1, 4, 5)

    def pairs(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps -> the input of the net: (B·U·V, 2C, H, W)."""
        return pair_windows(*_channels_last(features1, features2), self.radius)


def _channels_last(features1: Tensor, features2: Tensor) -> tuple[Tensor, Tensor]:
    """Both maps in the order of the kernels: a warp leaves its result channels first."""
    return features1.contiguous(memory_format=_LAST), features2.contiguous(memory_format=_LAST)
