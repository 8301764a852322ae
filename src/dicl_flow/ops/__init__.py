"""Pure tensor functions, without parameters."""

from .readout import (
    at_least_float32,
    displacement_probability,
    expected_displacement,
    normalized_entropy,
    truncate_scores,
)
from .resize import (
    Size,
    crop,
    normalize,
    pad_to_multiple,
    resize,
    resize_by_matrices,
    resize_flow_pixels,
    resize_pixels,
    size_in_multiples,
    size_of,
    upsample_flow,
    upsample_pixels,
)
from .warp import (
    displacement_windows,
    sample_clamped,
    warp,
    warp_strictly_inside,
    warp_with_mask,
)

__all__ = [
    "Size",
    "at_least_float32",
    "crop",
    "displacement_probability",
    "displacement_windows",
    "expected_displacement",
    "normalize",
    "normalized_entropy",
    "pad_to_multiple",
    "resize",
    "resize_flow_pixels",
    "resize_pixels",
    "size_in_multiples",
    "size_of",
    "resize_by_matrices",
    "sample_clamped",
    "truncate_scores",
    "upsample_flow",
    "upsample_pixels",
    "warp",
    "warp_strictly_inside",
    "warp_with_mask",
]
