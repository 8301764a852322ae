"""Baselines: methods to compare with that need no weights."""

from collections.abc import Callable
from typing import TypeAlias

import cv2
import numpy as np

from ..errors import InputError
from ..files import Array

Method: TypeAlias = Callable[[Array, Array], Array | tuple[Array, Array]]
"""Two (H, W, 3) uint8 RGB frames -> (H, W, 2) float32 flow, or it and (H, W) confidence."""


def dis() -> Callable[[Array, Array], Array]:
    """OpenCV's dense inverse search (Kroeger et al. 2016) with its "medium" settings."""
    if not hasattr(cv2, "DISOpticalFlow_create"):
        raise InputError(
            f"OpenCV {cv2.__version__} was built without DISOpticalFlow; install "
            f"opencv-python-headless to use the baseline 'dis'"
        )
    solver = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)

    def estimate(image1: Array, image2: Array) -> Array:
        grey1, grey2 = (cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (image1, image2))
        try:
            return np.asarray(solver.calc(grey1, grey2, None))
        except cv2.error as error:
            size = f"{image1.shape[1]}x{image1.shape[0]}"
            raise InputError(f"OpenCV's DIS cannot process {size} px: {error.err}") from None

    return estimate


BASELINES: dict[str, Callable[[], Callable[[Array, Array], Array]]] = {"dis": dis}
