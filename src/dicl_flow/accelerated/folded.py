"""Convolution, batch norm and ReLU as one operation with constant weights."""

import copy
from operator import sub
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ..models.blocks import ConvBlock
from . import private, settings
from .winograd import convolve, is_worth_winograd

_Module = TypeVar("_Module", bound=nn.Module)


class FoldedConv(nn.Module):
    """(Transposed) convolution, bias, subtraction and ReLU in one call.

    Stride, padding and dilation are those of `like`; weight and bias are rounded once, to `dtype`.
    """

    def __init__(
        self, like: nn.Module, weight: Tensor, bias: Tensor, dtype: torch.dtype, *, relu: bool
    ) -> None:
        super().__init__()
        assert isinstance(like, nn.Conv2d | nn.ConvTranspose2d)
        self.up = isinstance(like, nn.ConvTranspose2d)
        self.relu = relu
        self.stride, self.dilation = list(like.stride), list(like.dilation)
        self.padding = [int(side) for side in like.padding]
        self.weight = nn.Buffer(weight.to(dtype).contiguous(memory_format=torch.channels_last))
        self.bias = nn.Buffer(bias.to(dtype))
        self.has_bias = bool(bias.any())  # cuDNN adds it in a separate pass
        is_3x3 = (*weight.shape[2:], *like.stride) == (3, 3, 1, 1)
        self._suits_winograd = dtype == torch.float32 and (self.up or is_3x3)
        self._packed: tuple[torch.Size, Tensor] | None = None
        self._planes: tuple[Tensor, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave copies of the weight out of a pickle: their order belongs to this machine."""
        return {**vars(self), "_packed": None, "_planes": None}

    def forward(self, x: Tensor, less: Tensor | None = None) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'), `less` a tensor of that shape, before the ReLU."""
        if self._suits_winograd and less is None and is_worth_winograd(x):
            return self._winograd(x)
        x = self.prepare(x)
        if _onednn_fuses(x):
            return self._onednn(x, less)
        if x.is_cuda and self.relu and not self.up and x.dtype != torch.float64:
            where = (self.stride, self.padding, self.dilation)
            return private.cudnn_convolve_relu(x, self.weight, self.bias, where)
        bias = self.bias if self.has_bias else None
        if self.up:
            y = F.conv_transpose2d(x, self.weight, bias, self.stride, self.padding)
        else:
            y = F.conv2d(x, self.weight, bias, self.stride, self.padding, self.dilation)
        y = y if less is None else y.sub_(less)
        return y.relu_() if self.relu else y

    def prepare(self, x: Tensor) -> Tensor:
        """Return `x` in the precision of the weight, channels last."""
        return x.to(self.weight.dtype).contiguous(memory_format=torch.channels_last)

    def _winograd(self, x: Tensor) -> Tensor:
        if self._planes is None:
            values = (self.weight, self.bias)
            weight, bias = up_to_cells(*values) if self.up else values
            self._planes = (weight.contiguous(), bias)
        dilation = self.dilation[0]
        down, across = (side - dilation for side in self.padding)
        x = F.pad(x, [across, across, down, down]) if down or across else x
        y = convolve(x.float(), *self._planes, dilation, relu=self.relu)
        return cells_to_pixels(y) if self.up else y

    def _onednn(self, x: Tensor, less: Tensor | None) -> Tensor:
        x, padding = self._pad(x)
        where = (self.stride, padding, self.dilation)
        known = (self._pack(x, padding), self.bias, where)
        if less is not None and less.shape[2:] == (1, 1):  # "could not create a memory" in 2.11
            y = private.onednn_convolve(x, *known, None, up=False, relu=False).sub_(less)
            return y.relu_() if self.relu else y
        return private.onednn_convolve(x, *known, less, up=self.up, relu=self.relu)

    def _pad(self, x: Tensor) -> tuple[Tensor, list[int]]:
        """Write zeros around `x` where the padding is wider than half a window.

        oneDNN has no fast convolution for windows that lie outside the image altogether.
        """
        windows = zip(self.dilation, self.weight.shape[2:], strict=True)
        half = [dilation * (side // 2) for dilation, side in windows]
        padding = [*map(min, self.padding, half)]
        down, across = map(sub, self.padding, padding)
        return F.pad(x, [across, across, down, down]) if down or across else x, padding

    def _pack(self, x: Tensor, padding: list[int]) -> Tensor:
        """Return the weight in the order that oneDNN wants for images like `x`: made once."""
        known = self._packed  # another thread may replace it, for images of another size
        if known is not None and known[0] == x.shape[1:]:
            return known[1]
        where = (self.stride, padding, self.dilation)
        packed = private.onednn_order(self.weight, where, list(x.shape), up=self.up)
        self._packed = (x.shape[1:], packed)
        return packed


def _onednn_fuses(x: Tensor) -> bool:
    if x.device.type != "cpu" or not settings.processor().onednn:
        return False
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and settings.has_bf16(x.device))


def fold(block: ConvBlock) -> tuple[Tensor, Tensor]:
    """Put the batch norm of `block` into its convolution: weight and bias, in float64."""
    weight, norm = block.conv.weight, block.bn
    assert isinstance(weight, Tensor)
    weight, up = weight.detach().double(), isinstance(block.conv, nn.ConvTranspose2d)
    if not isinstance(norm, nn.BatchNorm2d):  # the resampling of a merge has none
        return weight, weight.new_zeros(weight.shape[1 if up else 0])
    # not `fuse_conv_bn_eval`: it computes in the weights' float32, and copies the module
    mean, variance, _ = (buffer.double() for buffer in norm.buffers())
    scale, shift = (parameter.detach().double() for parameter in (norm.weight, norm.bias))
    fused = fuse_conv_bn_weights(weight, None, mean, variance, norm.eps, scale, shift, up)
    return fused[0].detach(), fused[1].detach()


def folded_block(block: nn.Module, dtype: torch.dtype) -> FoldedConv:
    """Return a `ConvBlock` as one operation."""
    assert isinstance(block, ConvBlock)
    return FoldedConv(block.conv, *fold(block), dtype, relu=True)


def folded_head(conv: nn.Module, dtype: torch.dtype, scale: float) -> FoldedConv:
    """A last layer, times `scale`, as one operation, in float32 where `dtype` is bfloat16.

    Rounding flows to eight bits would be the largest error of all, and last layers are small.
    """
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    weight, bias = (parameter.detach() * scale for parameter in (conv.weight, conv.bias))
    precise = torch.float32 if dtype == torch.bfloat16 else dtype
    return FoldedConv(conv, weight, bias, precise, relu=False)


def folded(module: _Module, dtype: torch.dtype) -> _Module:
    """Copy `module` with its blocks folded."""
    blocks = (part for part in module.modules() if isinstance(part, ConvBlock))
    # what `deepcopy` takes instead of copying: no weight is copied
    copies: dict[int, Any] = {id(block): folded_block(block, dtype) for block in blocks}
    return copy.deepcopy(module, copies)


def is_reduced(dtype: torch.dtype) -> bool:
    """Whether `dtype` has fewer digits than float32."""
    return dtype in (torch.bfloat16, torch.float16)


def with_remainder(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors of a reduced `dtype` whose sum is `tensor` to twice the digits."""
    rounded = tensor.to(dtype)
    return rounded, (tensor - rounded).to(dtype)


_PHASES = [(a, b) for a in range(2) for b in range(2)]


def up_to_cells(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed (in, out, 4, 4), (out,) -> (4·out, in, 3, 3), (4·out,)."""
    inside, outside = weight.shape[:2]
    cells = weight.new_zeros(4, outside, inside, 3, 3)
    for phase, (a, b) in enumerate(_PHASES):
        for row, tap_y in _up_taps(a):
            for column, tap_x in _up_taps(b):
                cells[phase, :, :, row, column] = weight[:, :, tap_y, tap_x].T
    return cells.flatten(0, 1), bias.repeat(4)


def cells_to_pixels(cells: Tensor) -> Tensor:
    """(B, 4·C, H, W) -> (B, C, 2H, 2W)."""
    phases = cells.unflatten(1, (2, 2, -1))
    return phases.permute(0, 3, 4, 1, 5, 2).flatten(4, 5).flatten(2, 3)


def up_to_corners(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed (in, out, 4, 4), (out,) -> (4·out, in, 2, 2), (4·out,), to be padded by 1.

    Corners at the border have pixels outside it, which must be dropped.
    """
    corners = [weight[:, :, a:, b:][:, :, ::2, ::2].flip(2, 3) for a, b in _PHASES]
    return torch.cat(corners, 1).transpose(0, 1), bias.repeat(4)


def corners_inside(corners: Tensor) -> Tensor:
    """Set pixels of corners at the border that lie outside the image to zero, in place."""
    pixels = corners.unflatten(1, (2, 2, -1))
    pixels[:, 0, :, :, 0] = 0
    pixels[:, 1, :, :, -1] = 0
    pixels[:, :, 0, :, :, 0] = 0
    pixels[:, :, 1, :, :, -1] = 0
    return corners


def _up_taps(phase: int) -> list[tuple[int, int]]:
    """Which rows of a 3x3 kernel a phase uses, each with its row of the transposed 4x4 one."""
    taps = [(offset + 1, phase + 1 - 2 * offset) for offset in (-1, 0, 1)]
    return [(row, tap) for row, tap in taps if 0 <= tap < 4]
