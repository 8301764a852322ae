"""Cuts: changes of scene between two frames, where there is no motion to estimate."""

import cv2
import numpy as np

from ..estimation.warping import warp
from ..files import Array, to_uint8

CUTS = ("estimate", "blank", "hold")
"""The flow at a cut: as estimated, unknown, or that of the pair before."""

_SMALL = 96  # px, the longer side of the compared pictures
_CUT = 0.5  # unexplained share of the contrast: 0.05 to 0.25 within scenes, above 0.8 at cuts


def is_cut(image1: Array, image2: Array, flow: Array) -> bool:
    """Whether the frames show different scenes: no flow explains one by the other."""
    return unexplained(image1, image2, flow) > _CUT


def unexplained(image1: Array, image2: Array, flow: Array) -> float:
    """The difference between frame 2, warped by the flow, and frame 1, relative to its contrast.

    Compared small and in grey, where noise and fine texture do not matter.
    """
    height, width = flow.shape[:2]
    scale = min(1.0, _SMALL / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    greys = (cv2.cvtColor(to_uint8(image), cv2.COLOR_RGB2GRAY) for image in (image1, image2))
    first, second, vectors = (
        cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        for picture in (*greys, flow)
    )
    again, inside = np.moveaxis(
        warp(np.dstack([second, np.ones_like(second)]), vectors * scale), 2, 0
    )
    seen = inside > 0.999
    if not seen.any():
        return float("inf")
    contrast = np.abs(first - np.median(first)).mean() + 1  # plus one grey level, for blank frames
    return float(np.abs(first - again)[seen].mean() / contrast)
