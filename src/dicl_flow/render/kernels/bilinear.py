"""Bilinear interpolation inside kernels."""

import triton
import triton.language as tl


@triton.jit
def cell_of(x, side):
    """Positions in [0, side - 1] -> the cell between two points, and the share of its right one."""
    left = tl.minimum(tl.floor(x), side - 2.0)
    return left.to(tl.int32), x - left


@triton.jit
def between(values, place, right, down, x, y, mask):
    """The value at x, y in [0, 1] between the four that start at `place`."""
    corner = values + place
    top_left = tl.load(corner, mask, 0.0)
    top = top_left + x * (tl.load(corner + right, mask, 0.0) - top_left)
    corner += down
    bottom_left = tl.load(corner, mask, 0.0)
    bottom = bottom_left + x * (tl.load(corner + right, mask, 0.0) - bottom_left)
    return top + y * (bottom - top)


@triton.jit
def mirrored(x, side):
    """Positions in px -> inside the texture, mirrored at its borders, at most half a pixel out."""
    away = tl.abs(x + 0.5)
    turns = tl.floor(away / side)
    rest = away - turns * side
    odd = turns - 2.0 * tl.floor(turns / 2.0)
    rest = tl.where(odd > 0.5, side - rest, rest)
    return tl.minimum(tl.maximum(rest - 0.5, 0.0), side - 1.0)
