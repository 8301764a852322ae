"""The matching net with its first layer factored: exact, and a third of the work less."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...matching import Matcher, PairwiseMatcher
from ...nn import ConvBlock
from .cells import up_to_corners
from .edges import Edges, Terms
from .folded_layers import FoldedConv, ScoreConv, fold, folded_block
from .memory import displacements_at_once


class FactoredMatcher(Matcher):
    """The fast twin of a `PairwiseMatcher` with the paper's matching net.

    The first layer is max(A(p) + B(p+u), 0) = max(B(p+u), -A(p)) + A(p), where A and B are
    convolutions of one feature map each. Its second term passes through the next
    convolution once for all displacements: what is left to do for each is one maximum.
    """

    def __init__(
        self, matcher: PairwiseMatcher, dtype: torch.dtype, memory_limit: int | None = None
    ) -> None:
        super().__init__()
        assert isinstance(matcher.net, nn.Sequential)
        first, second, *inner, up, last = matcher.net
        assert isinstance(first, ConvBlock)
        assert isinstance(second, ConvBlock)
        assert isinstance(up, ConvBlock)
        self.radius = matcher.radius
        self.memory_limit = memory_limit
        weight, bias = fold(first)  # (96, 2C, 3, 3)
        of_first, of_second = weight.chunk(2, 1)
        self.minus_first = FoldedConv(first.conv, -of_first, -bias, dtype, relu=False)
        self.second_part = FoldedConv(first.conv, of_second, 0 * bias, dtype, relu=False)
        taps = [part.permute(2, 3, 1, 0).flatten(0, 2) for part in (of_first, of_second)]
        self.taps = nn.Buffer(torch.cat(taps).to(dtype))  # (2·9·C, 96)
        self.bias = nn.Buffer(bias.to(dtype))
        weight, bias = fold(second)
        self.second = FoldedConv(second.conv, weight, 0 * bias, dtype, relu=True)
        self.of_minus_first = FoldedConv(second.conv, -weight, bias, dtype, relu=False)
        weight, bias = up_to_corners(*fold(up))
        around = nn.Conv2d(weight.shape[1], weight.shape[0], 2, padding=1)
        self.inner = nn.Sequential(
            *(folded_block(block, dtype) for block in inner),
            FoldedConv(around, weight, bias, dtype, relu=True),
        )
        self.last = ScoreConv(last, dtype)

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps of even sides -> (B, 1, U, V, H, W)."""
        side = 2 * self.radius + 1
        features1, features2 = (
            f.to(self.bias.dtype).contiguous(memory_format=torch.channels_last)
            for f in (features1, features2)
        )
        minus_first = self.minus_first(features1)
        second_part = self.second_part(F.pad(features2, [self.radius] * 4))  # B beyond the image
        terms = Terms(minus_first, second_part, self.taps, self.bias)
        edges = Edges(features1, features2, terms)
        batch, _, height, width = features1.shape
        step = min(displacements_at_once(minus_first, self.memory_limit), side * side)
        addend = _repeated(self.of_minus_first(minus_first), step)
        scores = self.last.bias.new_empty(side * side, batch, height, width)
        for start in range(0, side * side, step):
            chunk = range(start, min(start + step, side * side))
            hidden = self._first_layer(minus_first, second_part, edges, chunk)
            hidden = self.second(hidden, addend[: len(hidden)])
            scores[chunk.start : chunk.stop] = self.last(self.inner(hidden)).unflatten(
                0, (len(chunk), batch)
            )
        return scores.unflatten(0, (side, side)).permute(2, 0, 1, 3, 4).unsqueeze(1)

    def _first_layer(
        self, minus_first: Tensor, second_part: Tensor, edges: Edges, chunk: range
    ) -> Tensor:
        """Return the first layer less A: (displacements · B, 96, H, W)."""
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
            moved = second_part[..., v : v + height, u : u + width]
            torch.maximum(moved, minus_first, out=target)
        edges.mend(result, chunk)
        return result


def _repeated(tensor: Tensor, times: int) -> Tensor:
    """Repeat along the batch, channels last; oneDNN is very slow at broadcasting."""
    return tensor.permute(0, 2, 3, 1).repeat(times, 1, 1, 1).permute(0, 3, 1, 2)
