"""Two maps concatenated, the first after a ReLU, in one pass."""

from torch import Tensor, nn

from ...models.pyramid import Merge
from ..folded import FoldedConv
from ..kernels import check, kernel, new_map, tile_shape, tl, triton

_TILE = 2048  # numbers of either map that a program copies


@kernel("num_rows")
def _merge_input(
    first,
    second,
    result,
    num_rows,
    channels: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
):
    """A run of pixels."""
    pixel = (tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows))[:, None]
    column = tl.arange(0, columns)[None, :]
    there = (pixel < num_rows) & (column < channels)
    source, target = pixel * channels + column, result + pixel * (2 * channels) + column
    value, other = tl.load(first + source, there, 0.0), tl.load(second + source, there, 0.0)
    value = tl.where(value.to(tl.float32) < 0, 0.0, value)  # lets NaN through
    tl.store(target, value.to(result.dtype.element_ty), there)
    tl.store(target + channels, other, there)


def merge_input(first: Tensor, second: Tensor) -> Tensor:
    """cat([relu(first), second]): two (B, C, H, W) -> (B, 2C, H, W), channels last."""
    check(first)
    check(second)
    batch, channels, height, width = first.shape
    result = new_map((batch, 2 * channels, height, width), first)
    grid, shape = tiles(first)
    _merge_input[grid](first, second, result, batch * height * width, **shape)
    return result


def tiles(first: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """How many runs of pixels there are, and their shape."""
    channels = first.shape[1]
    shape = {"channels": channels, **tile_shape(channels, _TILE)}
    return (triton.cdiv(first.numel() // channels, shape["rows"]),), shape


class KernelMerge(Merge):
    """A `Merge` whose ReLU and concatenation are one kernel."""

    def __init__(self, merge: Merge) -> None:
        """Take the layers of `merge`, which are folded already."""
        nn.Module.__init__(self)
        self.resample, self.fuse = merge.resample, merge.fuse
        assert isinstance(self.resample, FoldedConv)
        self.resample.relu = not self.resample.up  # cuDNN has it for free on the way down

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        return self.fuse(merge_input(self.resample(neighbour), skip))
