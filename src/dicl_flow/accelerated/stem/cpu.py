"""The stem in plain torch operations."""

import torch
from torch import Tensor

from ...models.blocks import ConvBlock
from ..folded import FoldedConv, fold, with_remainder


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
