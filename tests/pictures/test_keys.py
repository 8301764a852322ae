"""Captions and keys: they say what a picture shows, on frames of every size."""

import numpy as np
import pytest

from dicl_flow.pictures.figures import INK, PAPER
from dicl_flow.pictures.keys import add_arrow_key, add_caption, add_color_key, add_key
from dicl_flow.pictures.visualize import arrow_scale, flow_to_rgb

SIZES = [(48, 64), (64, 64), (384, 512), (2160, 3840)]


def grey(size):
    return np.full((*size, 3), 128, np.uint8)


def plate(before, after):
    """The changed part of a picture, and where it is."""
    rows, columns = (np.flatnonzero((before != after).any(axis)) for axis in ((1, 2), (0, 2)))
    box = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
    return after[box], box


@pytest.mark.parametrize("size", SIZES)
def test_the_wheel_has_the_colours_of_all_directions(size):
    picture = grey(size)
    key, (rows, columns) = plate(picture, add_color_key(picture, 20.0))
    assert (rows.stop, columns.stop) == size  # bottom right
    assert key.shape[0] <= size[0] / 2
    for direction in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        color = flow_to_rgb(0.8 * np.array([[direction]]), 1.0)[0, 0]
        assert np.abs(key.astype(int) - color).sum(2).min() < 60
    assert (key == PAPER).all(2).mean() > 0.2
    assert (key.min(2) > INK - 60).any()  # the text
    assert (picture == 128).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("maximum", "length"), [(1.0, 1), (7.3, 5), (45, 20), (99, 50), (0.3, 0.2)]
)
def test_the_arrow_of_the_key_has_a_round_length_to_scale(size, maximum, length):
    picture = grey(size)
    key, _ = plate(picture, add_arrow_key(picture, maximum))
    rows = ("".join("x" if ink else " " for ink in row) for row in key.max(2) > INK - 90)
    longest = max(len(run) for row in rows for run in row.split())
    assert longest == pytest.approx(length * arrow_scale(size, maximum), abs=3 + size[1] / 200)


def test_the_length_is_written():
    keys = [add_color_key(grey((384, 512)), maximum) for maximum in (20.0, 30.0, 30.2)]
    assert (keys[0] != keys[1]).any()
    np.testing.assert_array_equal(keys[1], keys[2])


@pytest.mark.parametrize("size", SIZES)
def test_captions_are_cut_at_a_comma_where_there_is_no_room(size):
    written = add_caption(grey(size), "arrows, drawn to scale")
    expected = "arrows" if size[1] < 100 else "arrows, drawn to scale"
    np.testing.assert_array_equal(written, add_caption(grey(size), expected))
    assert (written != 128).any()
    assert (written[size[0] // 2 :] == 128).all()


@pytest.mark.parametrize("size", [(1, 1), (5, 300), (300, 5), (22, 34)])
def test_what_does_not_fit_is_left_out(size):
    picture = grey(size)
    captions = add_caption(picture, "flow"), add_caption(picture, "long " * 99)
    for drawn in (add_color_key(picture, 9e9), add_arrow_key(picture, 9e9), *captions):
        np.testing.assert_array_equal(drawn, picture)


def test_only_pictures_of_flow_have_keys():
    picture = grey((384, 512))
    assert add_key("confidence", picture, 9.0) is picture
    for kind in ("image", "wheel", "overlay"):
        np.testing.assert_array_equal(add_key(kind, picture, 9.0), add_color_key(picture, 9.0))
    np.testing.assert_array_equal(add_key("arrows", picture, 9.0), add_arrow_key(picture, 9.0))
