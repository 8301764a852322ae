"""Bilinear samples with aligned corners, as `ops.resize` takes them: a part of other kernels."""
# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl


@triton.jit
def bilinear(source, row, column, height, width, there):
    """Samples of (height, width) maps that begin at `source`, at fractional rows and columns."""
    top, left = row.to(tl.int32), column.to(tl.int32)
    down, right = tl.where(top < height - 1, width, 0), tl.where(left < width - 1, 1, 0)
    low, far = row - top, column - left
    corner = source + top * width + left
    above = (1 - far) * tl.load(corner, there, 0.0) + far * tl.load(corner + right, there, 0.0)
    corner += down
    below = (1 - far) * tl.load(corner, there, 0.0) + far * tl.load(corner + right, there, 0.0)
    return (1 - low) * above + low * below


def sampling_step(old: int, new: int) -> float:
    """Samples of the `old` side from one of the `new` side to the next."""
    return (old - 1) / (new - 1) if new > 1 else 0.0
