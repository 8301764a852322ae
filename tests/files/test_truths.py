"""Encodings that only single data sets use: their bytes as published, and errors for all others."""

import io

import cv2
import numpy as np
import pytest

from dicl_flow.errors import InputError
from dicl_flow.files import read_truth

NAN = float("nan")


def png(rgb):
    return bytes(cv2.imencode(".png", np.asarray(rgb)[..., ::-1])[1])


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def read(tmp_path, encoding, data, ending=".png"):
    path = tmp_path / f"truth{ending}"
    path.write_bytes(data)
    return read_truth(path, encoding)


def test_virtual_kitti_stores_minus_to_plus_side_minus_1_and_unknown_in_blue(tmp_path):
    """The frame is 5x3 pixels, so 65535 is 4 px to the right, or 2 px down."""
    raw = np.full((3, 5, 3), 65535, np.uint16)
    raw[0, 0] = 0, 65535, 1
    raw[0, 1] = 32768, 0, 1
    raw[2, 4] = 65535, 65535, 0
    found = read(tmp_path, "virtual-kitti", png(raw))
    np.testing.assert_allclose(found[0, :3], [[-4, 2], [4 / 65535, -2], [4, 2]], atol=1e-6)
    assert np.isnan(found[2, 4]).all()
    assert np.isnan(found).sum() == 2


def test_kitti_stores_256_times_the_disparity_and_0_where_it_is_unknown(tmp_path):
    raw = np.uint16([[0, 256, 65535]])
    found = read(tmp_path, "kitti-disparity", bytes(cv2.imencode(".png", raw)[1]))
    np.testing.assert_array_equal(found, [[[NAN, NAN], [-1, 0], [-65535 / 256, 0]]])


def test_sintel_stores_disparity_in_three_bytes(tmp_path):
    raw = np.uint8([[[1, 0, 0], [0, 1, 0], [0, 0, 1], [2, 32, 0]]])
    found = read(tmp_path, "sintel-disparity", png(raw))
    expected = [-4, -1 / 64, -1 / 16384, -8.5]
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-6)
    assert (found[..., 1] == 0).all()


def test_viper_has_arrays_u_and_v_that_are_not_finite_where_unknown(tmp_path):
    u, v = np.float16([[1.5, np.inf, 3]]), np.float16([[-2, 0, np.nan]])
    found = read(tmp_path, "viper", npz(v=v, u=u), ".npz")
    np.testing.assert_array_equal(found, [[[1.5, -2], [NAN, NAN], [NAN, NAN]]])
    assert found.dtype == np.float32


GREY, COLOR = np.ones((4, 5), np.uint16), np.ones((4, 5, 3), np.uint16)
WHOLE = {
    "virtual-kitti": (png(COLOR), ".png"),
    "kitti-disparity": (bytes(cv2.imencode(".png", GREY)[1]), ".png"),
    "sintel-disparity": (png(COLOR.astype(np.uint8)), ".png"),
    "viper": (npz(u=np.ones((4, 5)), v=np.ones((4, 5))), ".npz"),
}


@pytest.mark.parametrize("encoding", WHOLE)
def test_every_truncated_file_is_refused_in_one_sentence(encoding, tmp_path):
    data, ending = WHOLE[encoding]
    assert read(tmp_path, encoding, data, ending).shape == (4, 5, 2)
    for end in range(1, len(data) - 12, 5):  # the last chunk of a PNG has no content
        with pytest.raises(InputError, match=rf"truth\{ending}: ") as caught:
            read(tmp_path, encoding, data[:end], ending)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("encoding", "other", "message"),
    [
        ("virtual-kitti", "sintel-disparity", "16-bit RGB PNG; this one has 8 bits and 3 channels"),
        (
            "kitti-disparity",
            "virtual-kitti",
            "16-bit grey PNG; this one has 16 bits and 3 channels",
        ),
        (
            "sintel-disparity",
            "kitti-disparity",
            "8-bit RGB PNG; this one has 16 bits and 1 channel",
        ),
        ("viper", "kitti-disparity", "not a .npz archive"),
    ],
)
def test_files_of_another_data_set_are_refused(encoding, other, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read(tmp_path, encoding, WHOLE[other][0], WHOLE[encoding][1])


def test_arrays_of_two_sizes_and_unknown_encodings_are_refused(tmp_path):
    with pytest.raises(InputError, match="u and v must be numbers of one"):
        read(tmp_path, "viper", npz(u=np.ones((4, 5)), v=np.ones((5, 4))), ".npz")
    with pytest.raises(InputError, match="no array named 'v'"):
        read(tmp_path, "viper", npz(u=np.ones((4, 5))), ".npz")
    with pytest.raises(InputError, match="unknown encoding 'kitti'"):
        read(tmp_path, "kitti", b"x")
