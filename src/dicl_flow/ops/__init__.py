"""Pure tensor functions; no parameters, no devices."""

from .pad import crop, pad_to_multiple, resize_flow_pixels, resize_pixels, size_in_multiples
from .readout import displacement_probability, expected_displacement, normalized_entropy
from .resize import resize, resize_by_matrices, upsample_flow
from .warp import warp, warp_with_mask
from .windows import displacement_windows

__all__ = [
    "crop",
    "displacement_probability",
    "displacement_windows",
    "expected_displacement",
    "normalized_entropy",
    "pad_to_multiple",
    "resize",
    "resize_flow_pixels",
    "resize_pixels",
    "size_in_multiples",
    "resize_by_matrices",
    "upsample_flow",
    "warp",
    "warp_with_mask",
]
