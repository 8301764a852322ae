"""The matching net's first layer, factored: what each frame adds to it is computed once.

The layer sees F1(p) and F2(q), q = p+u, through a 3x3 window, for each pixel p and each
displacement u. Both are zero where F2(q) is hidden: outside the image, or all zero. Where all nine
taps of the window are visible, the convolution of the pair is a sum of two convolutions:

    layer_u(p) = relu(A(p) + B(p+u) + bias)     A of F1, B of F2, each computed once

Where no tap is visible, it is relu(bias). A window that sees some taps and not others is
*partial*: at the border of either image, and around holes. There, each term lacks the taps that
the other frame hides, and the layer is computed by its definition.

- With matrix units on a CPU it is not factored (`cpu.py` of the folder above): they convolve the
  pairs in less time than the partial windows take.
- `cpu`, else: max(A + B, 0) = max(B, -A) + A, so that the next convolution sees A once for all
  displacements, and one maximum remains for each. Terms of partial windows are shared.
- `cuda`: one kernel adds the terms, two others list the partial windows and compute them.
- `training`: the same; batch norm, ReLU and gradients go through the layer tile by tile (`tiles`),
  computed again from its terms, so that neither pairs nor layer are ever written.
"""

import torch
from torch import Tensor, nn

from ...models.blocks import ConvBlock
from ..folded import FoldedConv, fold


class FactoredLayer(nn.Module):
    """relu(A(p) + B(p+u) + bias), and `taps` and `bias` for partial windows, where it is wrong."""

    def __init__(
        self, layer: ConvBlock, radius: int, dtype: torch.dtype, *, negated: bool = False
    ) -> None:
        """With `negated` the first term is -A(p) - bias; else no term has the bias."""
        super().__init__()
        assert isinstance(layer.conv, nn.Conv2d)
        self.radius, self.window = radius, layer.conv.kernel_size[0]
        weight, bias = fold(layer)  # (channels, 2C, window, window)
        of_first, of_second = weight.chunk(2, 1)
        terms = (-of_first, -bias) if negated else (of_first, 0 * bias)
        # (B, C, H, W) -> (B, channels, H, W); the second (…, H+2r, W+2r), beyond the image
        self.first_term = FoldedConv(layer.conv, *terms, dtype, relu=False)
        self.second_term = FoldedConv(layer.conv, of_second, 0 * bias, dtype, relu=False)
        self.second_term.padding = [side + radius for side in self.second_term.padding]
        # (window² · 2C, channels)
        self.taps = nn.Buffer(weight.permute(2, 3, 1, 0).flatten(0, 2).to(dtype).contiguous())
        self.bias = nn.Buffer(bias.to(dtype))

    def prepare(self, features: Tensor) -> Tensor:
        """Features as both terms take them."""
        return self.first_term.prepare(features)

    def taps_of_terms(self) -> tuple[Tensor, Tensor]:
        """The weights of A and those of B: (window² · C, channels) each."""
        first, second = self.taps.unflatten(0, (self.window**2, -1)).chunk(2, 1)
        return first.flatten(0, 1), second.flatten(0, 1)
