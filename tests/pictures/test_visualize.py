"""Colours, arrows and overlays of flow are the published ones."""

import numpy as np
import pytest
import torch

import dicl_flow
from dicl_flow.errors import InputError
from dicl_flow.pictures.visualize import (
    arrow_scale,
    arrow_spacing,
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


def marks_of_one_arrow(vector, **how):
    """Where a single arrow or dot changes a frame of 121 x 121, from its middle on."""
    image, flow = np.full((121, 121, 3), 100, np.uint8), np.full((121, 121, 2), np.nan, np.float32)
    flow[60, 60] = vector
    picture = draw_arrows(image, flow, spacing=121, **how)
    np.testing.assert_array_equal(image, 100)  # the caller's picture is untouched
    return np.abs(picture.astype(int) - (image // 2 + 32)).sum(2) > 0


def test_arrows_start_at_the_grid_and_point_along_the_flow():
    marks = marks_of_one_arrow((4, 0), maximum=30)
    columns = np.flatnonzero(marks.any(0))
    assert columns.min() >= 60 - 8  # the stroke has a round end
    tail, head = (np.count_nonzero(marks[:, part]) for part in (slice(0, 78), slice(78, 121)))
    assert head > tail


@pytest.mark.parametrize("size", [(48, 64), (384, 512), (1080, 1920)])
def test_arrows_are_to_scale_and_what_is_too_short_is_a_dot(size):
    """A background that moves by 1 px has no arrows as long as an arm that moves by 10."""
    image, flow = np.full((*size, 3), 100, np.uint8), np.full((*size, 2), np.nan, np.float32)
    spacing = arrow_spacing(size)

    def mark(length):
        """The height of what is drawn for one vector that points up."""
        flow[spacing // 2 + 3 * spacing, spacing // 2] = (0, -length)
        drawn = draw_arrows(image, flow, maximum=10.0)
        rows = np.flatnonzero((drawn != image // 2 + 32).any((1, 2)))
        return rows.max() - rows.min() + 1

    ten, five, one = mark(10), mark(5), mark(1)
    assert ten == pytest.approx(arrow_scale(size, 10.0) * 10, abs=spacing / 8 + 4)
    assert ten - five == pytest.approx(arrow_scale(size, 10.0) * 5, abs=2)
    assert ten >= 20  # large enough on small frames
    assert one <= spacing / 10 + 4


def test_no_motion_stays_a_dot():
    image, flow = np.full((41, 41, 3), 100, np.uint8), np.full((41, 41, 2), 0.05, np.float32)
    marks = np.abs(draw_arrows(image, flow, spacing=20).astype(int) - (image // 2 + 32)).sum(2)
    assert np.count_nonzero(marks) <= 4 * 16  # four dots


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


def test_a_wild_vector_does_not_shorten_the_other_arrows():
    image, flow = np.zeros((96, 128, 3), np.uint8), np.zeros((96, 128, 2), np.float32)
    flow[..., 0] = 4
    calm = draw_arrows(image, flow)
    flow[5, 5] = (1000, 0)  # on the grid
    wild = draw_arrows(image, flow)
    spacing = arrow_spacing(flow.shape)
    np.testing.assert_array_equal(wild[2 * spacing :], calm[2 * spacing :])
    changed = np.flatnonzero((wild != calm).any((0, 2)))
    assert changed.max() <= 5 + 9 * spacing + spacing  # it ends within the picture
