"""Rendered worlds and stereo pairs: masks, directions and eyes, and what is left out."""

import fake_trees
import numpy as np
import pytest

from dicl_flow.config import AugmentConfig
from dicl_flow.data import FlowDataset, list_pairs, read_sample
from dicl_flow.errors import InputError


def test_tartanair_leaves_out_what_may_have_moved_and_knows_what_is_hidden(tmp_path):
    fake_trees.make_tartanair(tmp_path)
    pair = list_pairs("tartanair", tmp_path)[0]
    assert pair.name == "abandonedfactory/Easy/P000/000000"
    sample = read_sample(pair)
    assert not sample.valid[0, 0]
    assert sample.valid.sum() == sample.valid.size - 1
    hidden = fake_trees.leaves_image(np.broadcast_to(sample.flow[1, 1], (*sample.valid.shape, 2)))
    hidden[0, :2] = True
    np.testing.assert_array_equal(sample.occluded, hidden)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((3, 4), np.uint8), r"is uint8 of shape \(3, 4\), expected uint8 of shape"),
        (np.zeros(fake_trees.SIZE, np.float32), "is float32 of shape"),
    ],
)
def test_a_mask_of_tartanair_that_does_not_fit_is_refused(codes, message, tmp_path):
    pair = list_pairs("tartanair", fake_trees.make_tartanair(tmp_path))[0]
    np.save(pair.codes, codes)
    with pytest.raises(InputError, match=message):
        read_sample(pair)
    whole = pair.codes.read_bytes()
    pair.codes.write_bytes(whole[:-9])
    with pytest.raises(InputError, match=r"_mask\.npy: truncated file"):
        read_sample(pair)


@pytest.mark.parametrize("name", ["sintel-stereo-clean", "sintel-stereo-final"])
def test_sintel_stereo_hides_what_either_mask_says(name, tmp_path):
    fake_trees.make_sintel_stereo(tmp_path)
    pairs = list_pairs(name, tmp_path)
    assert pairs[0].image2.parts[-3] == f"{name[14:]}_right"
    sample = read_sample(pairs[0])
    hidden = fake_trees.leaves_image(sample.flow)
    assert hidden[:, :3].all()  # the left border is not in the right frame
    hidden[-1, -1] = True
    assert sample.valid.all()
    np.testing.assert_array_equal(sample.occluded, hidden)


def test_kitti_stereo_tells_what_is_occluded(tmp_path):
    fake_trees.make_kitti12_stereo(tmp_path)
    (pair, _), (visible, _) = (
        list_pairs(name, tmp_path) for name in ("kitti12-stereo", "kitti12-stereo:noc")
    )
    sample = read_sample(pair)
    assert 0.4 < sample.valid.mean() < 0.6
    assert sample.occluded.any()
    np.testing.assert_array_equal(sample.valid & ~sample.occluded, read_sample(visible).valid)


def test_kitti12_stereo_takes_grey_frames_where_there_is_no_colour(tmp_path):
    fake_trees.make_kitti12_stereo(tmp_path)
    for number in "01":
        (tmp_path / f"training/colored_{number}").rename(tmp_path / f"training/image_{number}")
    pair = list_pairs("kitti12-stereo", tmp_path)[0]
    assert (pair.image1.parent.name, pair.image2.parent.name) == ("image_0", "image_1")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("spring", "0001/flow_FW_left/flow_FW_left_0001"),
        ("vkitti2", "Scene01/clone/forwardFlow/Camera_0/00000"),
        ("monkaa-final", "a_rain_of_stones_x2/left/into_future/0000"),
        ("driving-clean", "35mm_focallength/scene_forwards/slow/left/into_future/0000"),
    ],
)
def test_one_eye_and_direction_may_be_chosen(name, expected, tmp_path):
    fake_trees.MAKERS[name](tmp_path)
    assert [pair.name for pair in list_pairs(f"{name}:left-forward", tmp_path)] == [expected]
    everything = [pair.name for pair in list_pairs(name, tmp_path)]
    assert (len(everything), expected in everything) == (4, True)


def test_a_choice_that_leaves_nothing_is_an_error(tmp_path):
    fake_trees.make_virtual_kitti(tmp_path)
    for flow in tmp_path.rglob("flow_00000.png"):
        flow.unlink()
    assert len(list_pairs("vkitti2", tmp_path)) == 2
    with pytest.raises(FileNotFoundError, match="no pair of the left eye, forward in time"):
        list_pairs("vkitti2:left-forward", tmp_path)


@pytest.mark.parametrize("name", ["spring", "tartanair", "viper", "sintel-stereo-clean"])
def test_they_can_be_trained_on(name, tmp_path):
    pairs = list_pairs(name, fake_trees.MAKERS[name](tmp_path), needs_truth=True)
    sample = FlowDataset(pairs, AugmentConfig((32, 48)), 0)[0, 0]
    assert sample.flow.shape == (32, 48, 2)
    assert sample.valid.mean() > 0.5
    assert (sample.occluded, sample.fine, sample.regions) == (None, None, {})
