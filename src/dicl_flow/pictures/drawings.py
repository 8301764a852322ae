"""The pictures of one estimate, by name: what `dicl-flow flow` can draw."""

import numpy as np

from ..files import Array, to_uint8
from .visualize import confidence_to_grey, draw_arrows, flow_to_rgb, overlay

DRAWINGS = ("image", "overlay", "arrows", "confidence", "occlusion")


def draw_estimate(
    kind: str,
    image1: Array,
    flow: Array,
    confidence: Array,
    occlusion: Array | None = None,
    maximum: float | None = None,
) -> Array:
    """Draw one of `DRAWINGS`, (H, W) or (H, W, 3) uint8; `maximum` px get full colour."""
    draw = {
        "image": lambda: flow_to_rgb(flow, maximum),
        "overlay": lambda: overlay(to_uint8(image1), flow, maximum),
        "arrows": lambda: draw_arrows(to_uint8(image1), flow, maximum=maximum),
        "confidence": lambda: confidence_to_grey(confidence),
        "occlusion": lambda: confidence_to_grey(np.asarray(occlusion)),
    }
    return draw[kind]()
