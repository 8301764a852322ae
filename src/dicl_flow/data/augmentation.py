"""Pairs on disk as augmented samples, reproducible from a seed; the augmentation is the paper's.

One affine map, 3x3 on (x, y, 1) in pixels, is scale, stretch, flip and crop; frame 2 may have a
second one, a motion relative to frame 1. Each image is sampled once, and only inside the crop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import cv2
import numpy as np
from numpy.typing import ArrayLike

from ..config import AugmentConfig
from ..errors import InputError
from ..files import Array
from .sample import FlowPair, FlowSample, read_sample

_LEVELS = np.arange(256)
LUMA = (0.299, 0.587, 0.114)  # perceived brightness of red, green and blue
_NORMAL = np.array([NormalDist().inv_cdf((level + 0.5) / 256) for level in _LEVELS], np.float32)
_SHARP = 0.2  # px: a narrower blur changes nothing
_WHOLE = 1 - 1e-6  # a pixel is valid if all its sources are, up to rounding


class FlowDataset:
    """Pairs on disk as augmented samples in memory, reproducible from (seed, epoch, index).

    To mix data sets, concatenate their lists: `FlowDataset(sintel + 5 * kitti, config, seed)`.
    A pair that is listed twice is augmented in two ways.
    """

    def __init__(self, pairs: Sequence[FlowPair], augment: AugmentConfig | None, seed: int) -> None:
        if not pairs:
            raise InputError("a data set needs at least one pair, got none")
        if seed < 0:
            raise InputError(f"seed must be at least 0, got {seed}")
        self.pairs, self.augment, self.seed = pairs, augment, seed

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: tuple[int, int]) -> FlowSample:
        """Return sample `index` as augmented in `epoch`, for key = (epoch, index)."""
        epoch, index = key
        sample = self.read(index)
        if self.augment is None:
            return sample
        generator = np.random.default_rng([self.seed, epoch, index])
        return augment(sample, self.augment, generator, sparse=self.pairs[index].sparse)

    def read(self, index: int) -> FlowSample:
        """Return the sample before augmentation; what augmentation would drop is not read."""
        pair = self.pairs[index]
        if self.augment is not None:
            pair = replace(pair, occlusion=None, outside=None, visible_truth=None, regions=())
        return read_sample(pair)

    def order(self, epoch: int) -> Array:
        """Return the order of the indices in `epoch`."""
        # len(self) is not the index of a sample, so no sample has these random numbers.
        generator = np.random.default_rng([self.seed, epoch, len(self)])
        return generator.permutation(len(self))


def augment(
    sample: FlowSample, config: AugmentConfig, generator: np.random.Generator, *, sparse: bool
) -> FlowSample:
    """Augment a pair at random; the result has the size of `config.crop`.

    Truth that is `sparse` is never interpolated. The same generator state gives the same result.
    """
    erased = augment_erase(sample, config, generator)
    placed = augment_geometry(erased, config, generator, sparse=sparse)
    return augment_color(placed, config, generator, sparse=sparse)


def augment_erase(
    sample: FlowSample, config: AugmentConfig, generator: np.random.Generator
) -> FlowSample:
    """Fill parts of frame 2 with its mean colour, in some pairs."""
    erased = generator.random() < config.eraser
    return replace(sample, image2=erase(sample.image2, config, generator)) if erased else sample


def augment_geometry(
    sample: FlowSample, config: AugmentConfig, generator: np.random.Generator, *, sparse: bool
) -> FlowSample:
    """Scale, flip and crop."""
    height, width = sample.valid.shape
    placement = draw_placement((height, width), config, generator, sparse=sparse)
    return place(sample, placement, sparse=sparse)


def augment_color(
    sample: FlowSample, config: AugmentConfig, generator: np.random.Generator, *, sparse: bool
) -> FlowSample:
    """Change the colours, alike in both frames if `sparse`, blur, add noise; after the crop."""
    images = [sample.image1, sample.image2]
    if generator.random() < config.color:
        if generator.random() < config.asymmetric_color and not sparse:
            images = [_jitter(image, config, generator) for image in images]
        else:
            images = np.split(_jitter(np.concatenate(images), config, generator), 2)
    if config.blur > 0:
        images = blur(images, generator.uniform(0, config.blur))
    if config.noise > 0:
        deviation = generator.uniform(0, config.noise)
        images = [add_noise(image, deviation, generator) for image in images]
    return replace(sample, image1=images[0], image2=images[1])


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
    scale = _draw_scale(image, crop, config, generator, sparse)
    room = np.maximum(np.floor(scale * (image - 1) + 1e-9).astype(int) - (crop - 1), 0)
    margin = config.crop_margin
    shift = generator.integers(-margin, room + margin, endpoint=True).clip(0, room)
    flips = generator.random(2) < (config.horizontal_flip, 0 if sparse else config.vertical_flip)
    flip = _affine(np.where(flips, -1, 1), np.where(flips, crop - 1, 0))
    origin = _affine(1 / scale) @ _affine((1, 1), shift) @ flip
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


def _draw_scale(
    image: Array, crop: Array, config: AugmentConfig, generator: np.random.Generator, sparse: bool
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
    center, scale = ((crop - 1) / 2).tolist(), 2 ** (power * config.motion_scale)
    turn = cv2.getRotationMatrix2D(center, angle * config.motion_rotation, scale)
    return _affine((1, 1), config.motion_shift * np.array(shift)) @ np.vstack([turn, (0, 0, 1)])


def _affine(scale: ArrayLike, shift: ArrayLike = (0, 0)) -> Array:
    matrix = np.diag(np.append(scale, 1.0))
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
    flags, border = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, cv2.BORDER_REPLICATE
    return cv2.warpAffine(image, origin[:2], size[::-1], flags=flags, borderMode=border)


def blur(images: Sequence[Array], deviation: float) -> list[Array]:
    """Blur (H, W, 3) images with a Gaussian of this standard deviation in px."""
    if deviation < _SHARP:
        return [*images]
    return [cv2.GaussianBlur(image, (0, 0), deviation) for image in images]


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
    """Change brightness, contrast, saturation and hue, in random order."""
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
