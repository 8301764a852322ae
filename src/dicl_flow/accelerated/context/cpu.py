"""The context net in plain torch operations."""

import torch
from torch import Tensor, nn

from ...models.blocks import ContextNet, ConvBlock
from ...ops import resize
from ..folded import FoldedConv, fold, folded_block, folded_head, is_reduced, with_remainder


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
