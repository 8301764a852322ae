"""Occlusion: pixels whose flow, followed by the backward flow, does not return to the start."""

from torch import Tensor

from ..ops import warp_with_mask

RELATIVE, ABSOLUTE = 0.05, 4.0  # chosen on rendered scenes: docs/how-to/confidence-and-occlusion.md


def find_occlusion(
    flow: Tensor, backward: Tensor, relative: float = RELATIVE, absolute: float = ABSOLUTE
) -> Tensor:
    """(B, 2, H, W) flow and backward flow -> (B, 1, H, W) bool.

    A pixel p is occluded if p + f(p) leaves the frame, or if the backward flow b does not lead
    back to it: |f + b|² > relative (|f|² + |b|²) + absolute px², with b read at p + f(p).
    """
    back, inside = warp_with_mask(backward, flow)
    miss = (flow + back).square().sum(1, keepdim=True)
    motion = (flow.square() + back.square()).sum(1, keepdim=True)
    return ~inside | (miss > relative * motion + absolute)
