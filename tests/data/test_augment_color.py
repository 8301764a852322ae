"""Colour changes, noise and the eraser do what their settings say."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from dicl_flow.config import AugmentConfig, structure
from dicl_flow.data import FlowSample, augment
from dicl_flow.data.augmentation import (
    add_noise,
    change_brightness,
    change_contrast,
    change_saturation,
    erase,
    turn_hue,
)
from dicl_flow.errors import InputError

CROP = (96, 128)
STILL = AugmentConfig.crop_only(CROP)


@pytest.fixture(scope="module")
def sample():
    """Two frames without motion, of the size of the crop."""
    generator = np.random.default_rng(0)
    image1, image2 = generator.integers(0, 256, (2, *CROP, 3), dtype=np.uint8)
    return FlowSample(image1, image2, np.zeros((*CROP, 2), np.float32), np.ones(CROP, bool))


COLORED = replace(STILL, color=1.0)


def same_frames(sample, config, *, sparse=False):
    """Whether two equal frames are still equal after `augment`."""
    equal = replace(sample, image2=sample.image1)
    result = augment(equal, config, np.random.default_rng(0), sparse=sparse)
    assert not np.array_equal(result.image1, sample.image1)
    return np.array_equal(result.image1, result.image2)


def test_colours_change_in_both_frames_alike_or_not(sample):
    assert same_frames(sample, replace(COLORED, asymmetric_color=0.0))
    assert not same_frames(sample, replace(COLORED, asymmetric_color=1.0))
    assert same_frames(sample, replace(COLORED, asymmetric_color=1.0), sparse=True)
    assert not same_frames(sample, replace(STILL, noise=0.1))


@pytest.mark.parametrize("kind", ["brightness", "contrast", "saturation", "hue"])
def test_each_colour_change_can_be_had_alone(sample, kind):
    none = replace(COLORED, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0)
    unchanged = augment(sample, none, np.random.default_rng(0), sparse=False)
    np.testing.assert_array_equal(unchanged.image1, sample.image1)
    changed = augment(sample, replace(none, **{kind: 0.3}), np.random.default_rng(0), sparse=False)
    assert np.abs(changed.image1.astype(int) - sample.image1).mean() > 1


def test_blur_is_alike_in_both_frames_and_none_by_default(sample):
    assert same_frames(sample, replace(STILL, blur=3.0))
    blurred = augment(sample, replace(STILL, blur=3.0), np.random.default_rng(0), sparse=False)
    assert blurred.image1.std() < 0.7 * sample.image1.std()
    sharp = augment(sample, STILL, np.random.default_rng(0), sparse=False)
    np.testing.assert_array_equal(sharp.image1, sample.image1)


def test_colour_steps_do_what_they_say(sample):
    image = sample.image1
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(int)
    np.testing.assert_array_equal(change_brightness(image, 0.5), np.rint(image * 0.5))
    assert change_brightness(image, 3.0).max() == 255
    np.testing.assert_array_equal(change_contrast(image, 0.0), round(grey.mean()))
    assert np.abs(change_saturation(image, 0.0) - grey[..., None]).max() <= 1
    red, green, blue = np.eye(3, dtype=np.uint8)[:, None, None] * 200
    assert np.abs(turn_hue(red, 1 / 3).astype(int) - green).max() <= 5
    assert np.abs(turn_hue(red, -1 / 3).astype(int) - blue).max() <= 5


def test_noise_has_the_asked_deviation():
    image = np.full((200, 200, 3), 128, np.uint8)
    noise = add_noise(image, 0.05, np.random.default_rng(0)).astype(int) - 128
    assert noise.std() == pytest.approx(0.05 * 255, rel=0.02)
    assert abs(noise.mean()) < 0.2


def test_the_eraser_paints_frame_2_with_its_mean_colour(sample):
    config = replace(STILL, eraser=1.0, eraser_size=(20, 30))
    result = augment(sample, config, np.random.default_rng(1), sparse=False)
    np.testing.assert_array_equal(result.image1, sample.image1)
    erased = np.any(result.image2 != sample.image2, axis=2)
    assert erased.sum() > 0.5 * 20 * 20
    mean = np.rint(sample.image2.mean((0, 1)))
    np.testing.assert_array_equal(np.unique(result.image2[erased], axis=0), [mean])


def test_the_eraser_keeps_to_its_count_and_sizes():
    image = np.zeros((100, 100, 3), np.uint8)
    image[:, 0] = 250  # the mean is 2.5, which rounds to 2
    config = replace(STILL, eraser_count=(1, 1), eraser_size=(3, 9))
    heights = set()
    for seed in range(200):
        rows, columns = np.nonzero(erase(image, config, np.random.default_rng(seed))[..., 0] == 2)
        assert np.ptp(rows) < 9
        assert np.ptp(columns) < 9
        heights.add(np.ptp(rows) + 1)
    assert {3, 9} <= heights


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("crop", [0, 384]),
        ("spatial", 1.1),
        ("horizontal_flip", -0.1),
        ("brightness", float("nan")),
        ("hue", 0.6),
        ("min_scale", 2.0),
        ("max_scale", 9.0),
        ("stretch", -0.1),
        ("noise", 2.0),
        ("eraser_count", [0, 2]),
        ("eraser_size", [100, 50]),
        ("motion_rotation", 200.0),
        ("crop", [256]),
        ("spatial", "often"),
    ],
)
def test_a_value_out_of_range_names_its_key(key, value):
    with pytest.raises(InputError, match=key):
        structure(AugmentConfig, {key: value})
