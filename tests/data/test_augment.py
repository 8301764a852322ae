"""Augmented frames and their flow still match, for dense and sparse truth."""

from dataclasses import replace

import numpy as np
import pytest

from dicl_flow import warp
from dicl_flow.config import AugmentConfig
from dicl_flow.data import FlowSample, augment, augmentation
from dicl_flow.data.augmentation import Placement, draw_placement, place

HEIGHT, WIDTH = 150, 190
CROP = (96, 128)
STILL = AugmentConfig.crop_only(CROP)
SCALED = replace(STILL, spatial=1.0, stretch_probability=0.0)


def texture(x, y):
    """Smooth colours in [0, 255], defined everywhere."""
    waves = [(0.21, 0.05, 0.0), (-0.07, 0.19, 1.0), (0.13, -0.16, 2.0)]
    channels = [np.sin(a * x + b * y + c) + np.cos(0.9 * b * x - a * y) for a, b, c in waves]
    return np.rint(127.5 + 60 * np.stack(channels, -1)).astype(np.uint8)


@pytest.fixture(scope="module")
def sample():
    """Frame 1 is the texture seen at p + f(p), so f is the true flow: no resampling, no error."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
    flow = np.stack([7 + 0.05 * x - 0.04 * y, -5 + 0.03 * x + 2 * np.sin(y / 20)], -1)
    image1 = texture(x + flow[..., 0], y + flow[..., 1])
    return FlowSample(
        image1, texture(x, y), flow.astype(np.float32), np.ones((HEIGHT, WIDTH), bool)
    )


def warp_error(sample, flow):
    """Mean difference, in grey levels, of frame 1 and frame 2 pulled back along `flow`."""
    inside = warp(np.ones(sample.valid.shape), flow) > 0.5
    inside &= sample.valid & (sample.image2.min(2) > 0)
    assert inside.mean() > 0.04
    difference = warp(sample.image2.astype(np.float64), flow) - sample.image1
    return np.abs(difference[inside]).mean()


GEOMETRY = {
    "larger": replace(SCALED, min_scale=0.6, max_scale=0.7),
    "smaller": replace(SCALED, min_scale=-0.2, max_scale=-0.15),
    "stretched": replace(SCALED, stretch=0.6, stretch_probability=1.0, min_scale=0.3),
    "from a small image": replace(STILL, crop=(224, 256)),
    "flipped left to right": replace(STILL, horizontal_flip=1.0),
    "flipped top to bottom": replace(STILL, vertical_flip=1.0),
    "shifted": replace(STILL, motion_shift=10.0),
    "turned": replace(STILL, motion_rotation=15.0),
    "zoomed": replace(STILL, motion_scale=0.3),
    "all": replace(
        AugmentConfig(CROP, color=0.0, eraser=0.0, vertical_flip=0.5),
        motion_shift=5.0,
        motion_rotation=5.0,
        motion_scale=0.1,
    ),
}


@pytest.mark.parametrize("name", GEOMETRY)
@pytest.mark.parametrize("seed", range(3))
def test_the_moved_flow_leads_from_frame_1_to_frame_2(sample, name, seed, monkeypatch):
    result = augment(sample, GEOMETRY[name], np.random.default_rng(seed), sparse=False)
    assert result.image1.shape == (*GEOMETRY[name].crop, 3)
    assert warp_error(result, result.flow) < 1.2
    monkeypatch.setattr(augmentation, "move_vectors", lambda vectors, placement: vectors)
    unmoved = augment(sample, GEOMETRY[name], np.random.default_rng(seed), sparse=False)
    np.testing.assert_array_equal(unmoved.image2, result.image2)
    assert warp_error(result, unmoved.flow) > 5


def test_a_crop_is_cut_out_without_loss(sample):
    result = augment(sample, STILL, np.random.default_rng(0), sparse=False)
    height, width = CROP
    places = [
        (top, left)
        for top in range(HEIGHT - height + 1)
        for left in range(WIDTH - width + 1)
        if np.array_equal(result.image1, sample.image1[top : top + height, left : left + width])
    ]
    assert len(places) == 1
    rows, columns = (slice(start, start + n) for start, n in zip(places[0], CROP, strict=True))
    np.testing.assert_array_equal(result.image2, sample.image2[rows, columns])
    np.testing.assert_array_equal(result.flow, sample.flow[rows, columns])
    assert warp_error(result, sample.flow[:height, :width]) > 5  # the flow of another place


def test_the_whole_image_is_reached_by_crops():
    placements = [
        draw_placement((5, 7), AugmentConfig.crop_only((4, 4)), generator, sparse=False)
        for generator in map(np.random.default_rng, range(100))
    ]
    assert {tuple(p.origin[:2, 2]) for p in placements} == {
        (left, top) for left in range(4) for top in range(2)
    }


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (40, 300), (96, 128), (95, 128), (97, 129)])
@pytest.mark.parametrize("spatial", [0.0, 1.0])
def test_an_image_of_any_size_fills_the_crop(size, spatial):
    config = replace(STILL, spatial=spatial)
    corners = np.array([[0, CROP[1] - 1], [0, CROP[0] - 1], [1, 1]])
    for seed in range(20):
        placement = draw_placement(size, config, np.random.default_rng(seed), sparse=False)
        shown = (placement.origin @ corners)[:2]
        scale = 1 / np.diag(placement.origin)[:2]
        if min(size) > 1:
            assert np.all(shown > -1e-9)
            assert np.all(shown < np.array(size[::-1])[:, None] - 1 + 1e-9)
        if spatial == 0 and size[0] >= CROP[0] and size[1] >= CROP[1]:
            np.testing.assert_array_equal(scale, 1)
        else:
            assert np.all(scale * size[::-1] >= np.array(CROP[::-1]) + 1 - 1e-9)


def test_flips_change_the_sign_of_one_component(sample):
    crop = AugmentConfig.crop_only((HEIGHT, WIDTH))
    horizontal = augment(
        sample, replace(crop, horizontal_flip=1.0), np.random.default_rng(0), sparse=False
    )
    np.testing.assert_array_equal(horizontal.flow, sample.flow[:, ::-1] * np.float32([-1, 1]))
    np.testing.assert_array_equal(horizontal.image1, sample.image1[:, ::-1])
    vertical = augment(
        sample, replace(crop, vertical_flip=1.0), np.random.default_rng(0), sparse=False
    )
    np.testing.assert_array_equal(vertical.flow, sample.flow[::-1] * np.float32([1, -1]))
    np.testing.assert_array_equal(vertical.image2, sample.image2[::-1])


def test_things_happen_as_often_and_as_far_as_asked():
    config = AugmentConfig((10, 10))
    draws = [
        draw_placement((200, 200), config, np.random.default_rng(seed), sparse=False).origin
        for seed in range(1000)
    ]
    scale = 1 / np.array([np.diag(origin)[:2] for origin in draws])
    assert (scale < 0).mean(0) == pytest.approx([0.5, 0.1], abs=0.05)
    log_scale = np.log2(abs(scale))
    assert np.all(log_scale == 0, axis=1).mean() == pytest.approx(0.2, abs=0.05)
    assert -0.4 <= log_scale.min() < -0.3
    assert 1.1 < log_scale.max() <= 1.2
    stretched = log_scale[:, 0] != log_scale[:, 1]
    assert stretched.mean() == pytest.approx(0.8 * 0.8, abs=0.05)


def test_invalid_truth_never_bleeds_into_valid_truth(sample):
    valid = np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.95
    vector = np.float32([300, -200])
    holed = replace(sample, flow=np.where(valid[..., None], vector, np.float32(0)), valid=valid)
    result = augment(holed, GEOMETRY["stretched"], np.random.default_rng(0), sparse=False)
    assert 0.2 < result.valid.mean() < 0.95
    vectors = result.flow[result.valid]
    np.testing.assert_allclose(vectors, np.broadcast_to(vectors[0], vectors.shape), rtol=1e-5)
    np.testing.assert_array_equal(result.flow[~result.valid], 0)


def test_sparse_points_go_to_the_nearest_pixel_with_scaled_vectors(sample):
    valid = np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.1
    points = replace(
        sample, flow=np.where(valid[..., None], sample.flow, np.float32(0)), valid=valid
    )
    origin = np.array([[1 / 1.5, 0, 20], [0, 1 / 1.5, 10], [0, 0, 1]])
    result = place(points, Placement(CROP, origin, np.eye(3)), sparse=True)
    expected = np.zeros((*CROP, 2))
    known = np.zeros(CROP, bool)
    for y, x in zip(*np.nonzero(valid), strict=True):
        row, column = round((y - 10) * 1.5), round((x - 20) * 1.5)
        if 0 <= row < CROP[0] and 0 <= column < CROP[1]:
            expected[row, column] = 1.5 * sample.flow[y, x].astype(np.float64)
            known[row, column] = True
    assert known.sum() > 300
    np.testing.assert_array_equal(result.valid, known)
    np.testing.assert_allclose(result.flow, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["larger", "flipped left to right", "shifted", "turned"])
def test_sparse_truth_leads_from_frame_1_to_frame_2(sample, name, monkeypatch):
    valid = np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.3
    points = replace(
        sample, flow=np.where(valid[..., None], sample.flow, np.float32(0)), valid=valid
    )
    result = augment(points, GEOMETRY[name], np.random.default_rng(0), sparse=True)
    assert warp_error(result, result.flow) < 1.5
    monkeypatch.setattr(augmentation, "move_vectors", lambda vectors, placement: vectors)
    unmoved = augment(points, GEOMETRY[name], np.random.default_rng(0), sparse=True)
    assert warp_error(result, unmoved.flow) > 5


def test_sparse_truth_is_neither_stretched_nor_flipped_top_to_bottom():
    config = AugmentConfig(CROP, spatial=1.0, stretch_probability=1.0, vertical_flip=1.0)
    for seed in range(20):
        placement = draw_placement(
            (HEIGHT, WIDTH), config, np.random.default_rng(seed), sparse=True
        )
        x, y, _ = np.diag(placement.origin)
        assert y == abs(x)


def test_the_generator_decides_everything(sample):
    config = AugmentConfig(CROP, noise=0.05, motion_shift=3.0)
    first, again, other = (
        augment(sample, config, np.random.default_rng(seed), sparse=False) for seed in (1, 1, 2)
    )
    for name in ("image1", "image2", "flow", "valid"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.image1, other.image1)


def test_a_margin_makes_crops_at_the_border_frequent():
    config = replace(AugmentConfig.crop_only((8, 8)), crop_margin=20)
    generator = np.random.default_rng(0)
    placements = [draw_placement((12, 12), config, generator, sparse=False) for _ in range(200)]
    corners = np.array([placement.origin[:2, 2] for placement in placements])
    assert (corners >= 0).all()
    assert (corners <= 4).all()
    assert np.isin(corners, [0, 4]).mean() > 0.8  # 42 of 45 positions; without a margin, 2 of 5
