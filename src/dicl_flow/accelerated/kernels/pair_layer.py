"""The matching net's first layer in training, factored both ways: no pair is ever written.

Forward, see `first_layer.py`. Backward, with g_u(p) the gradient at pixel p for displacement u,
each tap t of the window has two sums over all displacements, where p and p+t are in the image:

    sum1_t(p+t) = Σ g_u(p)   where F2(p+t+u) is visible
    sum2_t(q+t) = Σ g_u(p)   of p = q-u

The gradients of F1 and F2 are the products of their sums with the weights, pixel by pixel; that of
the weights is the product of the sums with F1 and F2. The same input gives the same bits.
"""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .first_layer import add_parts, correct, new_layer, see
from .launching import kernel
from .layout import in_rows

_ALL = 511  # nine taps
_TALL, _WIDE = 4, 8  # pixels of a tile: a compact one seldom meets a border
_COLUMNS, _WARPS = 32, 4  # channels of a program: 16 bytes for each thread
_STAGES = tl.constexpr(5)  # displacements that are loaded at a time


@triton.jit
def _inside(y, x, height, width):
    return (y >= 0) & (y < height) & (x >= 0) & (x < width)


@kernel(do_not_specialize=["batch", "height", "width"])
def _sum(
    gradient,
    seen,
    restless,
    sums,
    batch,
    height,
    width,
    stride,
    radius: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    columns: tl.constexpr,
):
    """One of the two sums, all nine taps, of a tile of pixels of the image and the ring around it.

    The programs of a tile follow each other: what one has loaded, the others find in the cache.
    """
    side: tl.constexpr = 2 * radius + 1
    blocks: tl.constexpr = (channels + columns - 1) // columns
    second, tile = tl.program_id(0) // blocks % 2, tl.program_id(0) // (2 * blocks)
    column = tl.program_id(0) % blocks * columns + tl.arange(0, columns)[None, :]
    known = column < channels
    across, down = tl.cdiv(width + 2, wide), tl.cdiv(height + 2, tall)
    image, place = tile // (across * down), tl.arange(0, tall * wide)
    y = tile // across % down * tall + place // wide - 1
    x = tile % across * wide + place % wide - 1
    item = second * batch + image
    plane = height.to(tl.int64) * width * stride
    gradient += image * plane + column
    near = _inside(y, x, height, width)
    calm = tl.max(tl.load(restless + (item * height + y) * width + x, near, 1.0), 0) == 0
    nothing = tl.zeros((tall * wide, columns), tl.float32)
    if calm:  # all taps are set for all displacements: nine equal sums
        once = nothing
        for index in tl.range(side * side, num_stages=_STAGES):
            u, v = index // side - radius, index % side - radius
            pixel = (y - second * v) * width + x - second * u
            source = gradient + index * batch * plane + pixel[:, None] * stride
            once += tl.load(source, known, 0.0).to(tl.float32)
        total = (once, once, once, once, once, once, once, once, once)
    else:
        total = (nothing,) * 9
        for index in tl.range(side * side, num_stages=_STAGES):
            u, v = index // side - radius, index % side - radius
            row, line = y - second * v, x - second * u  # of the pixel whose gradient it is
            inside = _inside(row, line, height, width)
            # the first sum looks from the pixel to its match, the second the other way
            row_seen, line_seen = y + (1 - 2 * second) * v, x + (1 - 2 * second) * u
            looked = (item * (height + 2 * radius) + row_seen + radius) * (width + 2 * radius)
            bits = tl.load(seen + looked + line_seen + radius, inside, 0).to(tl.int32)[:, None]
            source = gradient + index * batch * plane + (row * width + line)[:, None] * stride
            value = tl.load(source, inside[:, None] & known, 0.0).to(tl.float32)
            total = (
                total[0] + tl.where((bits & 1) != 0, 1.0, 0.0) * value,
                total[1] + tl.where((bits & 2) != 0, 1.0, 0.0) * value,
                total[2] + tl.where((bits & 4) != 0, 1.0, 0.0) * value,
                total[3] + tl.where((bits & 8) != 0, 1.0, 0.0) * value,
                total[4] + tl.where((bits & 16) != 0, 1.0, 0.0) * value,
                total[5] + tl.where((bits & 32) != 0, 1.0, 0.0) * value,
                total[6] + tl.where((bits & 64) != 0, 1.0, 0.0) * value,
                total[7] + tl.where((bits & 128) != 0, 1.0, 0.0) * value,
                total[8] + tl.where((bits & 256) != 0, 1.0, 0.0) * value,
            )
    for tap in tl.static_range(9):
        row, line = y + tap // 3 - 1, x + tap % 3 - 1
        target = ((item * height + row).to(tl.int64) * width + line) * 9 + tap
        target = sums + target[:, None] * channels + column
        mask = _inside(row, line, height, width)[:, None] & known
        tl.store(target, total[tap].to(sums.dtype.element_ty), mask)


def _sums(gradient: Tensor, seen: Tensor, radius: int) -> Tensor:
    """(2, B·H·W, 9·channels): what the gradients of F1 and F2 are linear in."""
    _, channels, height, width = gradient.shape
    batch = len(seen) // 2
    gradient, stride = in_rows(gradient)
    restless = F.max_pool2d((seen != _ALL).float(), 2 * radius + 1, 1)
    sums = gradient.new_empty((2, batch * height * width, 9 * channels))
    tiles = batch * triton.cdiv(height + 2, _TALL) * triton.cdiv(width + 2, _WIDE)
    with torch.cuda.device_of(gradient):
        _sum[(tiles * 2 * triton.cdiv(channels, _COLUMNS),)](
            gradient,
            seen,
            restless,
            sums,
            batch,
            height,
            width,
            stride,
            radius=radius,
            channels=channels,
            tall=_TALL,
            wide=_WIDE,
            columns=_COLUMNS,
            num_warps=_WARPS,
        )
    return sums


class _PairLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features1: Tensor, features2: Tensor, visible: Tensor, weight: Tensor, radius: int
    ) -> Tensor:
        rounded, every = weight.to(features1.dtype), range((2 * radius + 1) ** 2)
        first, second = rounded.chunk(2, 1)
        part1 = F.conv2d(features1, first, padding=1)
        part2 = F.conv2d(features2, second, padding=1 + radius)
        last = torch.channels_last
        parts = (part1.contiguous(memory_format=last), part2.contiguous(memory_format=last))
        # behind the taps of frame 2 that are visible: those of frame 1 that are in the image
        seen, numbers = see(torch.cat([visible, torch.ones_like(visible)]), radius)
        taps = rounded.permute(2, 3, 1, 0).flatten(0, 2).contiguous()
        ctx.save_for_backward(features1, features2, seen, weight)
        ctx.radius = radius
        result = new_layer(parts[0], every)
        correct(result, (features1, features2), seen, numbers[0], taps, None, every)
        add_parts(result, parts, seen, None, every)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *features, seen, weight = ctx.saved_tensors
        batch, depth, height, width = features[0].shape
        sums = _sums(gradient, seen, ctx.radius)
        rounded = weight.to(sums.dtype).unflatten(1, (2, depth))
        rounded = rounded.permute(1, 3, 4, 0, 2).flatten(1, 3)  # (2, 9·channels, C)
        of_features = torch.bmm(sums, rounded).unflatten(1, (batch, height, width))
        # a product for each row of pixels: enough of them for a GPU, and summed in float32
        rows = torch.stack([each.permute(0, 2, 3, 1) for each in features]).flatten(0, 2)
        of_rows = torch.bmm(sums.view(-1, width, sums.shape[-1]).mT, rows).unflatten(0, (2, -1))
        of_weight = of_rows.sum(1, dtype=torch.float32)  # (2, 9·channels, C)
        of_weight = of_weight.unflatten(1, (3, 3, -1)).permute(3, 0, 4, 1, 2).flatten(1, 2)
        return (*of_features.permute(0, 1, 4, 2, 3), None, of_weight.to(weight.dtype), None)


def pair_layer(features1: Tensor, features2: Tensor, weight: Tensor, radius: int) -> Tensor:
    """Convolve every pixel of `features1` with each of its displacements in `features2`.

    Two (B, C, H, W) maps, channels last, and a (channels, 2C, 3, 3) weight -> the convolution of
    what `pair_windows` gives, with zeros around each map, but ordered (U·V·B, channels, H, W).
    Its precision is that of autocast, or else of the features.
    """
    kind = features1.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features1.dtype
    visible = (features2 != 0).any(1).to(torch.int8)
    return _PairLayer.apply(features1.to(dtype), features2.to(dtype), visible, weight, radius)
