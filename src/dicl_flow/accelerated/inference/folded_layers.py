"""Convolution, batch norm and ReLU as one operation with constant weights."""

import copy
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...nn import ConvBlock
from .settings import has_bf16

_Module = TypeVar("_Module", bound=nn.Module)


class FoldedConv(nn.Module):
    """(Transposed) convolution, bias, addend and ReLU in one call.

    Made after `like`, whose weight and bias are replaced; they are rounded once, to `dtype`.
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
        self.has_bias = bool(bias.any())  # cuDNN's is added in a pass of its own
        self._packed: tuple[torch.Size, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a pickle what is made again, in an order only this machine knows."""
        return {**vars(self), "_packed": None}

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'); an `addend` of that shape joins before the ReLU."""
        x = x.to(self.weight.dtype).contiguous(memory_format=torch.channels_last)
        if _onednn_fuses(x):
            return self._onednn(x, addend)
        if x.is_cuda and self.relu and not self.up and x.dtype != torch.float64:
            where = (self.stride, self.padding, self.dilation)
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, *where, 1)
        bias = self.bias if self.has_bias else None
        if self.up:
            y = F.conv_transpose2d(x, self.weight, bias, self.stride, self.padding)
        else:
            y = F.conv2d(x, self.weight, bias, self.stride, self.padding, self.dilation)
        y = y if addend is None else y.add_(addend)
        return y.relu_() if self.relu else y

    def _onednn(self, x: Tensor, addend: Tensor | None) -> Tensor:
        after = "relu" if self.relu else "none"
        where, steps = (self._pack(x), self.bias, self.padding), (self.stride, self.dilation, 1)
        operations = torch.ops.mkldnn
        if self.up:
            return operations._convolution_transpose_pointwise(
                x, *where, [0, 0], *steps, after, [], ""
            )
        if addend is None:
            return operations._convolution_pointwise(x, *where, *steps, after, [], "")
        return operations._convolution_pointwise.binary(
            x, addend, *where, *steps, "add", 1.0, after, [], ""
        )

    def _pack(self, x: Tensor) -> Tensor:
        """Return the weight in the order that oneDNN wants for images like `x`: made once."""
        if self._packed is None or self._packed[0] != x.shape[1:]:
            where, steps = ([0, 0], self.stride), (self.dilation, 1, list(x.shape))
            operations = torch.ops.mkldnn
            if self.up:
                packed = operations._reorder_convolution_transpose_weight(
                    self.weight, self.padding, *where, *steps
                )
            else:
                packed = operations._reorder_convolution_weight(
                    self.weight, self.padding, self.stride, *steps
                )
            self._packed = (x.shape[1:], packed)
        return self._packed[1]


class ScoreConv(nn.Module):
    """The twin of a last layer of one channel, never below float32: a product for each tap.

    oneDNN computes 16 channels, 15 of them for nothing; to compute what a pixel gives to each
    of its neighbours, and to add it there, is a quarter of the work. Pixels come in fours, as
    `up_to_corners` makes them.
    """

    def __init__(self, conv: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        assert isinstance(conv, nn.Conv2d)
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
        products = products.view(3, 3, batch, 2 * down, 2 * across)[..., 1:-1, 1:-1]
        left, rows, right = products.unbind(1)
        rows[..., 1:] += left[..., :-1]
        rows[..., :-1] += right[..., 1:]
        above, scores, below = rows.unbind(0)
        scores[:, 1:] += above[:, :-1]
        scores[:, :-1] += below[:, 1:]
        return scores.add_(self.bias)


def _onednn_fuses(x: Tensor) -> bool:
    if x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and has_bf16(x.device))


def fold(block: ConvBlock) -> tuple[Tensor, Tensor]:
    """Put the batch norm of `block` into its convolution: weight and bias, in float64."""
    weight, norm = block.conv.weight, block.bn
    assert isinstance(weight, Tensor)
    weight = weight.detach().double()
    axis = 1 if isinstance(block.conv, nn.ConvTranspose2d) else 0
    if not isinstance(norm, nn.BatchNorm2d):  # the resampling of a merge has none
        return weight, weight.new_zeros(weight.shape[axis])
    mean, variance, _ = (buffer.double() for buffer in norm.buffers())
    scale = norm.weight.detach().double() / torch.sqrt(variance + norm.eps)
    shape = [-1 if dimension == axis else 1 for dimension in range(4)]
    return weight * scale.view(shape), norm.bias.detach() - mean * scale


def folded_block(block: nn.Module, dtype: torch.dtype) -> FoldedConv:
    """Return the twin of a `ConvBlock`."""
    assert isinstance(block, ConvBlock)
    return FoldedConv(block.conv, *fold(block), dtype, relu=True)


def folded_head(conv: nn.Module, dtype: torch.dtype) -> FoldedConv:
    """Return the twin of a last layer, in float32 at least where `dtype` is bfloat16.

    Scores and flows that are rounded to eight bits are the largest error of all; the last
    layers are small.
    """
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    return FoldedConv(conv, conv.weight.detach(), conv.bias.detach(), precise(dtype), relu=False)


def precise(dtype: torch.dtype) -> torch.dtype:
    """What last layers compute in."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def folded(module: _Module, dtype: torch.dtype) -> _Module:
    """Copy `module` with its convolutions replaced by their twins."""
    twin = copy.deepcopy(module)
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if isinstance(child, ConvBlock):
                setattr(parent, name, folded_block(child, dtype))
            elif isinstance(child, nn.Conv2d) and not isinstance(parent, ConvBlock):
                setattr(parent, name, folded_head(child, dtype))
    return twin


def is_reduced(dtype: torch.dtype) -> bool:
    """Whether numbers lose digits against float32."""
    return dtype in (torch.bfloat16, torch.float16)


def with_remainder(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors of a reduced `dtype` whose sum is `tensor` to twice the digits."""
    rounded = tensor.to(dtype)
    return rounded, (tensor - rounded).to(dtype)
