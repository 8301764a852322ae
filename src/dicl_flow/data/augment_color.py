"""Augmentation of colours: brightness, contrast, saturation, hue, noise, erased rectangles."""

from statistics import NormalDist

import cv2
import numpy as np

from ..config import AugmentConfig
from ..files import Array

_LEVELS = np.arange(256)
LUMA = (0.299, 0.587, 0.114)  # perceived brightness of red, green and blue
_NORMAL = np.array([NormalDist().inv_cdf((level + 0.5) / 256) for level in _LEVELS], np.float32)


def color_jitter(
    image1: Array,
    image2: Array,
    config: AugmentConfig,
    generator: np.random.Generator,
    *,
    sparse: bool,
) -> tuple[Array, Array]:
    """Change brightness, contrast, saturation and hue; alike in both frames if `sparse`."""
    if generator.random() < config.asymmetric_color and not sparse:
        return _jitter(image1, config, generator), _jitter(image2, config, generator)
    both = _jitter(np.concatenate([image1, image2]), config, generator)
    return both[: len(image1)], both[len(image1) :]


def add_noise(image: Array, deviation: float, generator: np.random.Generator) -> Array:
    """Add Gaussian noise of this standard deviation (1 is white) to an (H, W, 3) uint8 image."""
    # Random bytes select quantiles: much faster than drawing normal numbers.
    picks = np.asarray(generator.integers(0, 256, image.shape, dtype=np.uint8))
    noise = cv2.LUT(picks, _NORMAL * np.float32(255 * deviation))
    return cv2.add(image, noise, dtype=cv2.CV_8U)


def erase(image: Array, config: AugmentConfig, generator: np.random.Generator) -> Array:
    """Fill random rectangles of an (H, W, 3) image with its mean colour."""
    mean = np.rint(cv2.mean(image)[:3]).astype(np.uint8)
    erased = image.copy()
    for _ in range(generator.integers(*config.eraser_count, endpoint=True)):
        top, left = generator.integers(0, image.shape[:2])
        height, width = generator.integers(*config.eraser_size, size=2, endpoint=True)
        erased[top : top + height, left : left + width] = mean
    return erased


def _jitter(image: Array, config: AugmentConfig, generator: np.random.Generator) -> Array:
    """Apply the four changes in random order."""
    steps = (
        (change_brightness, 1, config.brightness),
        (change_contrast, 1, config.contrast),
        (change_saturation, 1, config.saturation),
        (turn_hue, 0, config.hue),
    )
    for index in generator.permutation(len(steps)):
        step, center, reach = steps[index]
        image = step(image, center + generator.uniform(-reach, reach))
    return image


def change_brightness(image: Array, factor: float) -> Array:
    """Scale all values."""
    return cv2.LUT(image, _to_bytes(factor * _LEVELS))


def change_contrast(image: Array, factor: float) -> Array:
    """Scale the distance of all values from the mean grey."""
    mean = cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0]
    return cv2.LUT(image, _to_bytes(mean + factor * (_LEVELS - mean)))


def change_saturation(image: Array, factor: float) -> Array:
    """Scale the distance of each pixel from its own grey."""
    return cv2.transform(image, factor * np.eye(3) + (1 - factor) * np.array([LUMA] * 3))


def turn_hue(image: Array, turns: float) -> Array:
    """Rotate the hue."""
    shift = round(256 * turns) % 256
    if shift == 0:
        return image  # a conversion to HSV and back would lose precision
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += np.uint8(shift)  # wraps around, as hues do
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def _to_bytes(values: Array) -> Array:
    return np.rint(values.clip(0, 255)).astype(np.uint8)
