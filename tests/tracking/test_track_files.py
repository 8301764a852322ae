"""Files of tracks and points: what is written is read again; what is wrong is one sentence."""

import csv

import numpy as np
import pytest

from dicl_flow import InputError
from dicl_flow.tracking.tracks import COLUMNS, Tracks, read_points, read_tracks, write_tracks


@pytest.fixture
def tracks():
    """Two points in three frames, the second of which begins in the last."""
    points = np.array([[[1, 2], [1.5, 2.25], [2, 2.5]], [[np.nan] * 2, [7, 8], [9, 10]]])
    missing = np.isnan(points[..., 0])
    return Tracks(
        points=points.astype(np.float32),
        visible=np.array([[True, False, True], [False, True, True]]),
        error=np.where(missing, np.nan, 0.25).astype(np.float32),
        interval=np.array([[0, 1, 2], [0, -1, 0]], np.int16),
        queries=np.array([[0, 1, 2], [2, 9, 10]], np.float32),
        times=np.array([0.4, 0.5, 0.9]),
        cuts=np.array([1]),
        size=(48, 64),
        first=10,
        stride=2,
    )


def test_npz_has_the_layout_of_tap_vid_and_is_read_again(tmp_path, tracks):
    tracks.save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as arrays:
        assert {name: arrays[name].shape for name in arrays} == {
            "points": (2, 3, 2),
            "occluded": (2, 3),
            "expected_error": (2, 3),
            "interval": (2, 3),
            "queries": (2, 3),
            "times": (3,),
            "frames": (3,),
            "cuts": (1,),
            "size": (2,),
        }
        assert (arrays["occluded"] == ~tracks.visible).all()
        assert arrays["frames"].tolist() == [10, 12, 14]
    again = read_tracks(tmp_path / "t.npz")
    for name, value in vars(tracks).items():
        np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)


def test_csv_has_a_row_for_each_point_and_frame(tmp_path, tracks):
    write_tracks(tmp_path / "t.csv", tracks)
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 6
    assert [*rows[1].values()] == ["0", "12", "0.500000", "1.500", "2.250", "0", "0.250"]
    assert [*rows[3].values()] == ["1", "10", "0.400000", "", "", "0", ""]


def test_a_time_that_is_not_known_is_empty(tmp_path, tracks):
    tracks.times[:] = np.nan
    write_tracks(tmp_path / "t.csv", tracks)
    assert (tmp_path / "t.csv").read_text().splitlines()[1].startswith("0,10,,1.000,")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("times"), "no array named 'times'; it contains points, "),
        (lambda a: a.update(times=np.zeros(4)), "times must have the shape (T) of tracks"),
        (lambda a: a.update(points=np.zeros((2, 3))), "points must have the shape (N, T, 2)"),
        (lambda a: a.update(size=np.array([object()])), "not a .npy file of numbers"),
    ],
)
def test_a_file_that_is_no_tracks_is_refused(tmp_path, tracks, change, message):
    path = tmp_path / "t.npz"
    tracks.save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(InputError) as error:
        read_tracks(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_other_endings_are_refused(tmp_path, tracks):
    with pytest.raises(InputError, match=r"must end in \.npz or \.csv"):
        tracks.save(tmp_path / "t.txt")
    with pytest.raises(InputError, match=r"read from \.npz files"):
        read_tracks(tmp_path / "t.csv")


@pytest.mark.parametrize("text", ["frame,x,y\n3,1.5,2\n", "\ufeffY, X ,frame\r\n2,1.5,3\r\n\r\n"])
def test_points_are_read_in_any_order_of_columns(tmp_path, text):
    path = tmp_path / "p.csv"
    path.write_text(text, encoding="utf-8", newline="")
    np.testing.assert_array_equal(read_points(path), np.float32([[3, 1.5, 2]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"x,y\n1,2\n", "the first line must be frame,x,y, got x, y"),
        (b"frame,x,y,name\n1,2,3,a\n", "frame,x,y, got frame, x, y, name"),
        (b"0,3,4\n", "frame,x,y, got 0, 3, 4"),
        (b"frame,x,y\n", "the file has no points, only a header"),
        (b"frame,x,y\n0,1,2\n0,one,2\n", "line 3: expected three numbers"),
        (b"frame,x,y\n0,1\n", "line 2: expected three numbers"),
        (b"frame,x,y\n0.5,1,2\n", "line 2: a frame is a whole number from 0 on, got 0.5"),
        (b"frame,x,y\n-1,1,2\n", "line 2: a frame is a whole number from 0 on, got -1"),
        (b"x,y,frame\n1,2,nan\n", "line 2: a frame is a whole number from 0 on, got nan"),
        (b"frame,x,y\n0,inf,2\n", "line 2: x and y must be finite numbers, got inf and 2"),
        (b"\xff\xfe\x00x", "this is no text"),
        (b"", "empty"),
    ],
)
def test_other_points_are_one_sentence_that_names_the_line(tmp_path, text, message):
    path = tmp_path / "p.csv"
    path.write_bytes(text)
    with pytest.raises(InputError) as error:
        read_points(path)
    assert message in str(error.value)
    assert str(error.value).count(str(path)) == 1
