"""The augmentation of training pairs, as in the paper."""

from dataclasses import replace

import numpy as np

from ..config import AugmentConfig
from .augment_color import add_noise, color_jitter, erase
from .augment_geometry import draw_placement, place
from .sample import FlowSample


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
    if generator.random() >= config.eraser:
        return sample
    return replace(sample, image2=erase(sample.image2, config, generator))


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
    """Change the colours and add noise; after the crop, when there are fewer pixels."""
    image1, image2 = sample.image1, sample.image2
    if generator.random() < config.color:
        image1, image2 = color_jitter(image1, image2, config, generator, sparse=sparse)
    if config.noise > 0:
        deviation = generator.uniform(0, config.noise)
        image1 = add_noise(image1, deviation, generator)
        image2 = add_noise(image2, deviation, generator)
    return replace(sample, image1=image1, image2=image2)
