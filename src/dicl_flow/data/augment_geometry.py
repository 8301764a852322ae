"""Augmentation of geometry: one affine map for scale, stretch, flip and crop.

Frame 2 may have a second map, an additional motion relative to frame 1. Each image is sampled once,
and only inside the crop. Matrices are 3x3 and act on (x, y, 1), in pixels.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from ..config import AugmentConfig
from ..files import Array
from .sample import FlowSample

_WHOLE = 1 - 1e-6  # a pixel is valid if all its sources are, up to rounding


@dataclass(frozen=True)
class Placement:
    """The position of a crop in its frames."""

    size: tuple[int, int]
    """(height, width) of the crop."""
    origin: Array
    """Pixel of the crop -> its position in frame 1."""
    motion: Array
    """Position in the crop of frame 1 -> position in that of frame 2, if the flow is zero."""


def draw_placement(
    size: tuple[int, int], config: AugmentConfig, generator: np.random.Generator, *, sparse: bool
) -> Placement:
    """Draw scale, position, flips and extra motion for frames of this (height, width)."""
    image, crop = np.array(size[::-1]), np.array(config.crop[::-1])  # x first from here on
    scale = _draw_scale(image, crop, config, generator, sparse=sparse)
    room = np.maximum(np.floor(scale * (image - 1) + 1e-9).astype(int) - (crop - 1), 0)
    margin = config.crop_margin
    shift = generator.integers(-margin, room + margin, endpoint=True).clip(0, room)
    flips = generator.random(2) < (config.horizontal_flip, 0 if sparse else config.vertical_flip)
    origin = _affine(1 / scale) @ _affine((1, 1), shift) @ flip(crop, flips)
    return Placement(config.crop, origin, _draw_motion(crop, config, generator))


def place(sample: FlowSample, placement: Placement, *, sparse: bool) -> FlowSample:
    """Cut out the crop, with the flow between its two frames.

    Truth that is `sparse` is moved point by point; other truth is interpolated, and valid where
    all source pixels are valid. The occlusion mask is dropped.
    """
    transfer = _scatter if sparse else _interpolate
    vectors, valid = transfer(sample.flow, sample.valid, placement)
    flow = cv2.copyTo(move_vectors(vectors, placement), valid.astype(np.uint8))  # zero elsewhere
    origin2 = placement.origin @ np.linalg.inv(placement.motion)
    image1 = _warp(sample.image1, placement.origin, placement.size)
    return FlowSample(image1, _warp(sample.image2, origin2, placement.size), flow, valid)


def move_vectors(vectors: Array, placement: Placement) -> Array:
    """(H, W, 2) flow at the pixels of the crop: from pixels of the frames to those of the crop.

    A pixel p of the crop with the vector v goes to motion(p + inverse(origin) v).
    """
    moved = cv2.transform(vectors, (placement.motion @ np.linalg.inv(placement.origin))[:2, :2])
    drift = placement.motion - np.eye(3)
    if drift.any():
        x, y = np.arange(placement.size[1]), np.arange(placement.size[0])[:, None]
        for axis in range(2):
            moved[..., axis] += drift[axis, 0] * x + drift[axis, 1] * y + drift[axis, 2]
    return moved


def flip(crop: Array, flips: Array) -> Array:
    """Mirror the axes, (x, y), for which `flips` is true, within a crop of (width, height)."""
    return _affine(np.where(flips, -1, 1), np.where(flips, crop - 1, 0))


def _draw_scale(
    image: Array,
    crop: Array,
    config: AugmentConfig,
    generator: np.random.Generator,
    *,
    sparse: bool,
) -> Array:
    """Return the scale of x and y, large enough for the crop to fit."""
    margins = (crop + 1) / image, (crop - 1) / np.maximum(image - 1, 1)
    least = np.max(margins)  # the second is larger for images of less than half the crop
    if generator.random() >= config.spatial:
        return np.full(2, 1.0 if np.all(image >= crop) else least)
    power = np.full(2, generator.uniform(config.min_scale, config.max_scale))
    if generator.random() < config.stretch_probability and not sparse:
        power += generator.uniform(-config.stretch, config.stretch, 2)
    return np.maximum(2**power, least)


def _draw_motion(crop: Array, config: AugmentConfig, generator: np.random.Generator) -> Array:
    angle, power, *shift = generator.uniform(-1, 1, 4)
    center = ((crop - 1) / 2).tolist()
    turn = cv2.getRotationMatrix2D(
        center, angle * config.motion_rotation, 2 ** (power * config.motion_scale)
    )
    return _affine((1, 1), config.motion_shift * np.array(shift)) @ np.vstack([turn, (0, 0, 1)])


def _affine(
    scale: Array | tuple[float, float], shift: Array | tuple[float, float] = (0, 0)
) -> Array:
    matrix = np.diag([*scale, 1.0])
    matrix[:2, 2] = shift
    return matrix


def _interpolate(flow: Array, valid: Array, placement: Placement) -> tuple[Array, Array]:
    """Return vectors, in pixels of the frames, and validity at the pixels of the crop."""
    vectors = _warp(flow, placement.origin, placement.size)
    share = _warp(valid.astype(np.float32), placement.origin, placement.size)
    return vectors, share > _WHOLE


def _scatter(flow: Array, valid: Array, placement: Placement) -> tuple[Array, Array]:
    """The same for sparse truth: each point goes to the nearest pixel."""
    rows, columns = np.divmod(np.flatnonzero(valid), valid.shape[1])
    points = np.stack([columns, rows, np.ones_like(rows)])
    x, y = np.rint(np.linalg.inv(placement.origin)[:2] @ points).astype(int)
    height, width = placement.size
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x, y = x[inside], y[inside]
    vectors, known = np.zeros((height, width, 2), np.float32), np.zeros((height, width), bool)
    vectors[y, x] = flow[rows[inside], columns[inside]]
    known[y, x] = True
    return vectors, known


def _warp(image: Array, origin: Array, size: tuple[int, int]) -> Array:
    """Sample `image` at origin(p) for each pixel p of a crop of this (height, width)."""
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(
        image, origin[:2], size[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE
    )
