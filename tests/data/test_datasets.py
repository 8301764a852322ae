"""Every data set lists its pairs with the right truth, splits and masks."""

from dataclasses import replace
from pathlib import Path

import fake_trees
import numpy as np
import pytest

from dicl_flow.data import read_sample
from dicl_flow.data.datasets import (
    DATA_SETS,
    chairs_pairs,
    kitti_pairs,
    kitti_test_pairs,
    list_pairs,
    parse_data_argument,
    sintel_pairs,
    sintel_test_pairs,
    things_pairs,
)
from dicl_flow.data.frames import image_files, natural_key, neighbour
from dicl_flow.data.stereo import middlebury_stereo_pairs
from dicl_flow.errors import InputError


def names(pairs):
    return [pair.name for pair in pairs]


def assert_moves(sample):
    """Frame 1 at x is frame 2 at x + flow, wherever the truth is known and stays inside."""
    y, x = np.nonzero(sample.valid)
    dx, dy = np.rint(sample.flow[y, x]).astype(int).T
    height, width = sample.valid.shape
    inside = (x + dx >= 0) & (x + dx < width) & (y + dy >= 0) & (y + dy < height)
    assert inside.sum() > 0.3 * height * width
    seen = sample.image2[(y + dy)[inside], (x + dx)[inside]]
    np.testing.assert_array_equal(seen, sample.image1[y[inside], x[inside]])


def without_variant(name):
    return name.split(":")[0]


SPARSE = ("kitti12", "kitti15", "hd1k", "kitti12-stereo", "kitti15-stereo")


COUNTS = {
    "chairs": 3,
    "chairs:train": 3,
    "chairs:val": 1,
    "chairs:all": 4,
    "things-clean": 8,  # 2 views, 2 directions, 2 pairs in 3 frames
    "things-final": 12,  # the full tree has 4 frames
    "things-clean:val": 2,
    "things-clean:authors": 8,
    "things-final:val": 3,
    "sintel-clean": 4,
    "sintel-final": 4,
    "kitti12": 2,
    "kitti12:noc": 2,
    "kitti15": 2,
    "kitti15:noc": 2,
    "hd1k": 4,
    "middlebury": 2,
    "stereo": 2,
    "kitti12-stereo": 2,
    "kitti12-stereo:noc": 2,
    "kitti15-stereo": 2,
    "kitti15-stereo:noc": 2,
    "sintel-stereo-clean": 2,
    "sintel-stereo-final": 2,
    "spring": 4,  # 2 eyes, 2 directions, 2 frames
    "spring:left-forward": 1,
    "tartanair": 4,
    "vkitti2": 4,
    "vkitti2:left-forward": 1,
    "viper": 2,
    "viper:val": 2,
    **{f"{film}-{p}": 4 for film in ("monkaa", "driving") for p in ("clean", "final")},
    **{f"{film}-{p}:left-forward": 1 for film in ("monkaa", "driving") for p in ("clean", "final")},
    "pairs": 2,
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_data_set_lists_pairs_whose_truth_is_right(name, tmp_path):
    fake_trees.MAKERS[without_variant(name)](tmp_path)
    pairs = list_pairs(name, tmp_path, needs_truth=True)
    assert len(set(names(pairs))) == len(pairs) == COUNTS[name]
    for pair in pairs:
        assert pair.sparse == (without_variant(name) in SPARSE)
        assert_moves(read_sample(pair))


@pytest.mark.parametrize("name", DATA_SETS)
def test_an_empty_folder_is_an_error_that_names_it(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        list_pairs(name, tmp_path)


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_tree_without_files_is_an_error(name, tmp_path):
    fake_trees.MAKERS[without_variant(name)](tmp_path)
    for path in tmp_path.rglob("*.*"):
        if path.suffix != ".txt" and path.is_file():
            path.unlink()
    with pytest.raises(FileNotFoundError, match="no complete pair under"):
        list_pairs(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "left"),
    [
        ("chairs", "data/00001_img1.ppm", 2),
        ("chairs", "data/00001_img2.ppm", 2),
        ("chairs", "data/00001_flow.flo", 2),
        ("things-clean", "train/image_clean/left/0000000.png", 6),  # both directions need it
        ("things-clean", "train/flow/right/into_past/0000001.flo", 7),
        ("sintel-clean", "training/clean/alley_1/frame_0002.png", 2),
        ("sintel-final", "training/flow/alley_1/frame_0002.flo", 3),
        ("kitti12", "training/colored_0/000000_11.png", 1),
        ("kitti15:noc", "training/flow_noc/000001_10.png", 1),
        ("hd1k", "hd1k_input/image_2/000000_0002.png", 3),
        ("middlebury", "other-data/Venus/frame11.png", 1),
        ("stereo", "Piano/im1.png", 1),
        ("kitti15-stereo", "training/image_3/000000_10.png", 1),
        ("kitti12-stereo:noc", "training/disp_noc/000001_10.png", 1),
        ("sintel-stereo-clean", "training/clean_right/alley_1/frame_0001.png", 1),
        ("spring", "train/0001/frame_left/frame_left_0002.png", 2),
        ("spring", "train/0001/flow_BW_right/flow_BW_right_0002.flo5", 3),
        ("tartanair", "abandonedfactory/Easy/P000/flow/000000_000001_mask.npy", 3),
        ("vkitti2", "Scene01/clone/frames/rgb/Camera_1/rgb_00000.jpg", 2),
        ("viper", "train/img/001/001_00003.png", 1),
        ("monkaa-clean", "frames_cleanpass/a_rain_of_stones_x2/left/0001.png", 2),
        ("pairs", "pair0_img2.png", 1),
        ("pairs", "pair1_flow.flo", 1),
    ],
)
def test_incomplete_pairs_are_left_out(name, file, left, tmp_path):
    fake_trees.MAKERS[name.split(":")[0]](tmp_path)
    (tmp_path / file).unlink()
    assert len(list_pairs(name, tmp_path)) == left


@pytest.mark.parametrize("name", DATA_SETS)
def test_copies_and_hidden_files_do_not_disturb(name, tmp_path):
    fake_trees.MAKERS[without_variant(name)](tmp_path)
    before = list_pairs(name, tmp_path)
    for path in list(tmp_path.rglob("*.*")):
        if path.is_file():
            path.with_name(f"._{path.name}").write_bytes(b"")  # what macOS leaves behind
    assert list_pairs(name, tmp_path) == before


@pytest.mark.parametrize("name", ["chair", "kitti15:occluded", "chairs:", "", "sintel"])
def test_unknown_names_and_variants(name, tmp_path):
    with pytest.raises(InputError, match="unknown data set"):
        list_pairs(name, tmp_path)


def test_data_argument():
    name, path = parse_data_argument("kitti15:noc=~/data=1/KITTI")
    assert name == "kitti15:noc"
    assert path.parts[-2:] == ("data=1", "KITTI")
    assert "~" not in str(path)


@pytest.mark.parametrize("text", ["kitti15", "kitti15=", "=x", "", "kitty=x"])
def test_wrong_data_arguments(text):
    with pytest.raises(InputError, match=r"NAME=PATH|unknown data set 'kitty'"):
        parse_data_argument(text)


def test_natural_order():
    assert sorted(["f10", "f9", "f09", "e11"], key=natural_key) == ["e11", "f09", "f9", "f10"]
    assert sorted(["1٣2", "1a2", "1"], key=natural_key) == ["1", "1a2", "1٣2"]  # a digit, not ASCII


def test_images_are_listed_in_natural_order():
    names = ["b/f1.png", "a/f10.PNG", "a/f2.jpg", "a/.f3.png", "a/notes.txt", "a/f1.tif"]
    found = image_files(map(Path, names))
    assert [str(file) for file in found] == ["a/f1.tif", "a/f2.jpg", "a/f10.PNG", "b/f1.png"]


def test_neighbour_keeps_the_digits(tmp_path):
    assert neighbour(tmp_path / "frame_0009.png").name == "frame_0010.png"
    assert neighbour(tmp_path / "0010.png", -1).name == "0009.png"


def test_line_n_of_the_chairs_split_belongs_to_pair_number_n(tmp_path):
    fake_trees.make_chairs(tmp_path, num_pairs=4)
    for file in (tmp_path / "data").glob("00002_*"):
        file.unlink()
    (tmp_path / "FlyingChairs_train_val.txt").write_text("1\n2\n2\n1\n")
    assert names(chairs_pairs(tmp_path, "train")) == ["00001", "00004"]
    assert names(chairs_pairs(tmp_path, "val")) == ["00003"]
    assert names(chairs_pairs(tmp_path, "all")) == ["00001", "00003", "00004"]


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        (None, "no split file .*chairs:all"),
        ("1\n1\n", "2 lines, but none for pair 00003"),
        ("1\n\n1\n1\n2\n", "line 2: expected 1 .train. or 2 .val., got ''"),
        ("1\n3\n1\n2\n", "line 2: expected 1 .train. or 2 .val., got '3'"),
        ("2\n2\n2\n2\n", "none of the 4 pairs on disk to 'train'"),
        ("", "empty"),
    ],
)
def test_wrong_chairs_split_files(marks, message, tmp_path):
    fake_trees.make_chairs(tmp_path)
    split = tmp_path / "FlyingChairs_train_val.txt"
    split.unlink() if marks is None else split.write_text(marks)
    with pytest.raises((InputError, FileNotFoundError), match=message):
        list_pairs("chairs", tmp_path)


def test_unknown_split_pass_and_truth(tmp_path):
    for listing, word in [(chairs_pairs, "test"), (things_pairs, "raw"), (sintel_pairs, "raw")]:
        with pytest.raises(InputError, match="unknown"):
            listing(tmp_path, word)
    with pytest.raises(InputError, match="unknown truth of KITTI 'all'"):
        kitti_pairs(tmp_path, 2015, "all")


def test_things_lists_both_views_directions_and_passes(tmp_path):
    fake_trees.make_things(tmp_path)
    pairs = things_pairs(tmp_path, "final")
    back = next(pair for pair in pairs if pair.name == "right/into_past/0000001")
    assert back.image1 == tmp_path / "train/image_final/right/0000001.png"
    assert back.image2 == tmp_path / "train/image_final/right/0000000.png"


def test_things_drops_the_publishers_unused_frames(tmp_path):
    fake_trees.make_things_full(tmp_path)
    unused = "TRAIN/A/0000/left/0007.png\nTRAIN/B/0000/left/0006.png\nTEST/A/0000/left/0008.png\n"
    (tmp_path / "all_unused_files.txt").write_text(unused)
    left = [name for name in names(things_pairs(tmp_path)) if "/left/" in name]
    # frame 7 is the start or the end of 6->7, 7->8, and both ways back
    assert left == ["TRAIN/A/0000/left/into_future/0008", "TRAIN/A/0000/left/into_past/0009"]
    assert len(things_pairs(tmp_path, "final")) == 2 + 6


def test_things_leaves_out_the_hard_flows_of_the_authors(tmp_path):
    fake_trees.make_things(tmp_path)
    train = tmp_path / "train"
    for view, number in (("left", 4117), ("left", 2890), ("right", 2890)):
        (train / f"flow/{view}/into_future/{number:07d}.flo").touch()
        (train / f"image_clean/{view}/{number:07d}.png").touch()
        (train / f"image_clean/{view}/{number + 1:07d}.png").touch()
    listed, kept = (
        set(names(list_pairs(name, tmp_path))) for name in ("things-clean", "things-clean:authors")
    )
    assert listed - kept == {"left/into_future/0004117", "right/into_future/0002890"}
    with pytest.raises(InputError, match="download FlyingThings3D_subset"):
        list_pairs("things-clean:authors", fake_trees.make_things_full(tmp_path / "full"))


def test_things_validates_on_the_left_view_into_the_future(tmp_path):
    fake_trees.make_things(tmp_path)
    pairs = list_pairs("things-clean:val", tmp_path)
    assert names(pairs) == ["left/into_future/0000000", "left/into_future/0000001"]
    assert pairs[0].image1 == tmp_path / "val/image_clean/left/0000000.png"


def test_things_names_the_pass_that_was_not_downloaded(tmp_path):
    fake_trees.make_things(tmp_path)
    (tmp_path / "train" / "image_final").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="image_final; for things-final, point at"):
        list_pairs("things-final", tmp_path)


def test_sintel_masks(tmp_path):
    fake_trees.make_sintel(tmp_path)
    (tmp_path / "training/occlusions/cave_4/frame_0001.png").unlink()
    (tmp_path / "training/invalid/cave_4/frame_0001.png").unlink()
    pairs = sintel_pairs(tmp_path)
    assert all(read_sample(pair).valid.all() for pair in pairs)  # as published
    with_masks, _, without_masks, _ = (
        read_sample(replace(pair, valid_only=True)) for pair in pairs
    )
    assert not with_masks.valid[:2, :2].any()
    assert with_masks.valid.mean() > 0.9
    motion = np.broadcast_to(with_masks.flow[-1, -1], with_masks.flow.shape)
    np.testing.assert_array_equal(with_masks.occluded, fake_trees.leaves_image(motion))
    assert without_masks.valid.all()
    assert without_masks.occluded is None


def test_kitti_noc_tells_what_is_occluded(tmp_path):
    fake_trees.make_kitti15(tmp_path)
    (pair, other), (visible, _) = kitti_pairs(tmp_path), kitti_pairs(tmp_path, truth="noc")
    sample = read_sample(pair)
    assert 0.4 < sample.valid.mean() < 0.6
    assert sample.occluded.any()
    np.testing.assert_array_equal(sample.valid & ~sample.occluded, read_sample(visible).valid)
    assert read_sample(visible).occluded is None
    other.visible_truth.unlink()
    assert kitti_pairs(tmp_path)[1].visible_truth is None


def test_kitti12_takes_grey_frames_where_there_is_no_colour(tmp_path):
    fake_trees.make_kitti12(tmp_path)
    (tmp_path / "training" / "colored_0").rename(tmp_path / "training" / "image_0")
    assert kitti_pairs(tmp_path, 2012)[0].image1.parent.name == "image_0"


def test_kitti_without_flow_occ_points_to_noc(tmp_path):
    fake_trees.make_kitti12(tmp_path)
    (tmp_path / "training" / "flow_occ").rename(tmp_path / "training" / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"flow_occ; .*kitti12:noc reads flow_noc"):
        list_pairs("kitti12", tmp_path)
    assert len(list_pairs("kitti12:noc", tmp_path)) == 2


def test_test_splits_have_frames_and_no_truth(tmp_path):
    sintel = fake_trees.make_sintel(tmp_path / "sintel")
    kitti = fake_trees.make_kitti15(tmp_path / "kitti")
    # the multi-view download has frames 00 to 20
    fake_trees.write_image(kitti / "testing/image_2/000000_09.png", np.zeros((4, 4, 3), np.uint8))
    pairs = sintel_test_pairs(sintel, "final")
    assert names(pairs) == [
        f"{scene}/frame_000{n}" for scene in ("alley_1", "cave_4") for n in "12"
    ]
    assert pairs[1].image2 == sintel / "test/final/alley_1/frame_0003.png"
    assert names(kitti_test_pairs(kitti)) == ["000000_10", "000001_10"]
    assert kitti_test_pairs(kitti)[1].image2.name == "000001_11.png"
    assert {pair.truth for pair in [*pairs, *kitti_test_pairs(kitti)]} == {None}
    with pytest.raises(FileNotFoundError, match="testing/colored_0"):
        kitti_test_pairs(kitti, 2012)


def test_hd1k_does_not_pair_across_sequences(tmp_path):
    fake_trees.make_hd1k(tmp_path)
    assert names(list_pairs("hd1k", tmp_path)) == [
        f"00000{sequence}_000{frame}" for sequence in "01" for frame in "01"
    ]


def test_stereo_scene_with_both_disparities_is_one_pair(tmp_path):
    fake_trees.make_stereo(tmp_path)
    (tmp_path / "Piano" / "disp0.npy").write_bytes((tmp_path / "Motorcycle/disp0.npy").read_bytes())
    pairs = middlebury_stereo_pairs(tmp_path)
    assert [pair.truth.name for pair in pairs] == ["disp0.npy", "disp0.pfm"]
    sample = read_sample(pairs[1])
    assert not sample.valid[0, 0]
    assert sample.valid.sum() == sample.valid.size - 1


@pytest.mark.parametrize(
    ("name", "folder", "expected"),
    [
        ("middlebury", "Middlebury", ["Dimetrodon", "Grove2", "RubberWhale", "Venus"]),
        ("sintel-clean", "Sintel", ["alley_1/frame_0002", "cave_4/frame_0029"]),
        ("sintel-final", "Sintel", ["alley_1/frame_0002"]),
        ("kitti15", "KITTI2015", ["000010_10"]),
        ("kitti15:noc", "KITTI2015", ["000010_10"]),
        ("kitti12:noc", "KITTI2012", ["000157_10"]),
        ("chairs:all", "FlyingChairs_release", ["00001", "00002"]),
        ("pairs", "FlyingChairs_release/data", ["00001", "00002"]),
        ("stereo", "MiddleburyStereo2014", ["Motorcycle"]),
    ],
)
def test_real_pairs(name, folder, expected, datasets):
    """The truth must explain the frames: warping beats standing still by far."""
    pairs = list_pairs(name, datasets / folder, needs_truth=True)
    assert names(pairs) == expected
    for pair in pairs:
        still, warped = photometric_errors(read_sample(pair))
        assert warped < 0.6 * still, pair.name


def photometric_errors(sample):
    """Mean difference of frame 1 from frame 2, as it is and warped by the truth, where visible."""
    import cv2

    height, width = sample.valid.shape
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).astype(np.float32)
    target = grid + sample.flow
    warped = cv2.remap(sample.image2, target, None, cv2.INTER_LINEAR)
    inside = ((target >= 0) & (target <= [width - 1, height - 1])).all(2)
    where = sample.valid & inside
    if sample.occluded is not None:
        where &= ~sample.occluded
    image1 = sample.image1.astype(float)
    return tuple(np.abs(image - image1)[where].mean() for image in (sample.image2, warped))
