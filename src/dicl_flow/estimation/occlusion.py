"""Which pixels of a frame have no counterpart in the other: those that do not find back."""

from torch import Tensor

from ..ops import warp_with_mask

RELATIVE, ABSOLUTE = 0.05, 4.0  # chosen on rendered scenes: docs/how-to/confidence-and-occlusion.md


def find_occlusion(
    flow: Tensor, backward: Tensor, relative: float = RELATIVE, absolute: float = ABSOLUTE
) -> Tensor:
    """Two (B, 2, H, W) flows, there and back -> (B, 1, H, W) bool.

    A pixel p is occluded where p + f(p) leaves the frame, and where the way there and back
    ends elsewhere: |f + b|² > relative (|f|² + |b|²) + absolute px², with b read at p + f(p).
    """
    back, inside = warp_with_mask(backward, flow)
    miss = (flow + back).square().sum(1, keepdim=True)
    motion = (flow.square() + back.square()).sum(1, keepdim=True)
    return ~inside | (miss > relative * motion + absolute)
