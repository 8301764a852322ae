"""Colours, arrows and overlays of flow are the published ones."""

import numpy as np
import pytest
import torch

import dicl_flow
from dicl_flow.errors import InputError
from dicl_flow.pictures.visualize import (
    color_wheel,
    confidence_to_grey,
    draw_arrows,
    flow_statistics,
    flow_to_rgb,
    overlay,
)


def pixel(x, y, maximum=None):
    return flow_to_rgb(np.array([[[x, y]]], np.float32), maximum)[0, 0].tolist()


def test_wheel_has_the_published_55_colours():
    wheel = np.rint(color_wheel() * 255).astype(int)
    assert wheel.shape == (55, 3)
    assert wheel[0].tolist() == [255, 0, 0]
    assert wheel[1].tolist() == [255, 17, 0]
    assert wheel[15].tolist() == [255, 255, 0]
    assert wheel[16].tolist() == [255 - 42, 255, 0]  # 255 - floor(255 / 6)
    assert wheel[21].tolist() == [0, 255, 0]
    assert wheel[25].tolist() == [0, 255, 255]
    assert wheel[36].tolist() == [0, 0, 255]
    assert wheel[49].tolist() == [255, 0, 255]
    assert wheel[54].tolist() == [255, 0, 255 - 212]


def test_directions_have_their_published_colours():
    assert pixel(1, 0) == [255, 0, 0]  # right: red
    assert pixel(-1, 0)[0] < 10  # left: cyan to blue
    assert pixel(-1, 0)[2] == 255
    assert pixel(0, 1) == [255, 229, 0]  # down: yellow
    assert pixel(0, -1)[1:] == [0, 255]  # up: violet


def test_speed_is_saturation_and_rest_is_white():
    assert pixel(0, 0) == [255, 255, 255]
    assert pixel(1, 0, maximum=2) == [255, 127, 127]
    assert pixel(4, 0, maximum=2) == [191, 0, 0]  # beyond the maximum: darker


def test_a_still_frame_is_nearly_white_not_a_rainbow():
    """A tenth of a pixel has a tenth of the colour, in the wheel and in arrows."""
    assert pixel(0.1, 0) == pixel(0.1, 0, maximum=1)
    flow = np.full((40, 40, 2), 0.1, np.float32)
    image = np.full((40, 40, 3), 100, np.uint8)
    np.testing.assert_array_equal(draw_arrows(image, flow), draw_arrows(image, flow, maximum=1))


def test_unknown_flow_is_black_and_does_not_set_the_scale():
    flow = np.array([[[1, 0], [np.nan, np.nan], [1e10, 0]]])
    assert flow_to_rgb(flow)[0].tolist() == [[255, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("maximum", [0, -1, float("nan")])
def test_a_maximum_must_be_positive(maximum):
    with pytest.raises(InputError, match="must be positive"):
        pixel(1, 0, maximum)


def test_what_is_no_flow_is_refused():
    with pytest.raises(InputError, match="shape"):
        flow_to_rgb(np.zeros((2, 3, 4)))


def test_overlay_shows_both_brightness_and_direction():
    image = np.zeros((1, 2, 3), np.uint8)
    image[0, 1] = 255
    out = overlay(image, np.array([[[1.0, 0], [1.0, 0]]]))
    assert out[0, 0, 0] < out[0, 1, 0] == 255
    assert (out[..., 1:] == 0).all()


def test_arrows_start_at_the_grid_and_point_along_the_flow():
    image = np.full((40, 40, 3), 100, np.uint8)
    flow = np.full((40, 40, 2), np.nan, np.float32)
    flow[20, 20] = (15, 0)
    before, after = image // 2 + 32, draw_arrows(image, flow, spacing=40)
    changed = np.abs(after.astype(int) - before).sum(2) > 0
    columns = np.flatnonzero(changed.any(0))
    assert changed.any()
    assert columns.min() >= 19
    assert 33 <= columns.max() <= 37
    np.testing.assert_array_equal(image, 100)  # the caller's picture is untouched


@pytest.mark.parametrize("length", [1.0, 1.5, 4.0])
def test_short_arrows_can_be_seen_and_point_along_the_flow(length):
    image, flow = np.full((41, 41, 3), 100, np.uint8), np.full((41, 41, 2), np.nan, np.float32)
    flow[20, 20] = (length, 0)
    marks = np.abs(draw_arrows(image, flow, spacing=41).astype(int) - (image // 2 + 32)).sum(2)
    columns = np.flatnonzero(marks.any(0))
    assert columns.min() >= 19  # where it starts
    assert columns.max() >= 26
    tail, head = (np.count_nonzero(marks[:, part]) for part in (slice(0, 23), slice(24, 41)))
    assert head > tail


def test_no_motion_stays_a_dot():
    image, flow = np.full((41, 41, 3), 100, np.uint8), np.full((41, 41, 2), 0.05, np.float32)
    marks = np.abs(draw_arrows(image, flow, spacing=41).astype(int) - (image // 2 + 32)).sum(2)
    assert np.count_nonzero(marks) <= 9


def test_arrows_survive_enormous_vectors():
    flow = np.full((20, 20, 2), 1e8, np.float32)
    assert draw_arrows(np.zeros((20, 20, 3), np.uint8), flow).shape == (20, 20, 3)


def test_confidence_is_grey():
    assert confidence_to_grey(np.array([[0, 0.5, 1]])).tolist() == [[0, 128, 255]]


def test_statistics():
    flow = np.array([[[3, 4], [0, 0], [np.nan, np.nan]]], np.float32)
    statistics = flow_statistics(flow)
    assert statistics["mean_length"] == 2.5
    assert statistics["max_length"] == 5
    assert statistics["max_y"] == 4
    assert statistics["known"] == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="unknown everywhere"):
        flow_statistics(flow[:, 2:])


def test_warp_pulls_frame_two_back():
    image = np.arange(24, dtype=np.uint8).reshape(4, 6)
    flow = np.zeros((4, 6, 2), np.float32)
    flow[..., 0] = 2
    flow[0, 0] = np.nan
    warped = dicl_flow.warp(image, flow)
    assert warped.dtype == np.uint8
    assert warped[1].tolist() == [8, 9, 10, 11, 0, 0]
    assert warped[0].tolist() == [0, 3, 4, 5, 0, 0]
    color = dicl_flow.warp(np.dstack([image] * 3), flow)
    np.testing.assert_array_equal(color[..., 1], warped)
    tensors = torch.from_numpy(image)[None, None].float(), torch.from_numpy(flow).permute(2, 0, 1)
    np.testing.assert_array_equal(dicl_flow.warp(tensors[0], tensors[1][None])[0, 0], warped)


def test_warp_of_sizes_that_differ_is_refused():
    with pytest.raises(InputError, match="one size"):
        dicl_flow.warp(np.zeros((4, 4)), np.zeros((4, 5, 2)))
    with pytest.raises(InputError, match="2 components"):
        dicl_flow.warp(np.zeros((4, 4)), np.zeros((4, 4, 3)))
