"""Folders, manifests and videos of users become pairs, with or without truth."""

import ntpath
import sys
from pathlib import Path
from types import SimpleNamespace

import av
import fake_trees
import numpy as np
import pytest

from dicl_flow.data import (
    data_set,
    list_pairs,
    own,
    own_pairs,
    read_frames,
    read_sample,
    video_frames,
)
from dicl_flow.errors import InputError


def names(pairs):
    return [pair.name for pair in pairs]


@pytest.fixture
def video(tmp_path):
    """Four lossless frames."""
    path = tmp_path / "clip.mkv"
    frames, _ = fake_trees.moving_frames(4, (64, 96))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "bgr0"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("truth", ["{}.flo", "{}_flow.pfm", "flow/{}.npz", "flow/{}.png"])
def test_a_clip_pairs_each_frame_with_the_next_in_natural_order(truth, tmp_path):
    fake_trees.make_own_clip(tmp_path, num_frames=4, truth=truth)
    pairs = own_pairs(tmp_path)
    assert names(pairs) == ["frame_9", "frame_10", "frame_11"]
    assert pairs[0].image2.name == "frame_10.png"
    assert all(pair.sparse == truth.endswith(".png") for pair in pairs)
    assert read_sample(pairs[0]).valid.all()


def test_a_clip_without_flow_files_has_no_truth(tmp_path):
    fake_trees.make_own_clip(tmp_path, truth=None)
    assert [pair.truth for pair in own_pairs(tmp_path)] == [None, None]
    with pytest.raises(InputError, match="the pair frame_9 has no flow file"):
        list_pairs("pairs", tmp_path, needs_truth=True)


def test_frames_without_a_flow_file_are_left_out_when_others_have_one(tmp_path):
    fake_trees.make_own_clip(tmp_path, num_frames=4)
    (tmp_path / "frame_10.flo").unlink()
    assert names(own_pairs(tmp_path)) == ["frame_9", "frame_11"]


def test_flow_files_that_belong_to_no_frame_are_an_error(tmp_path):
    fake_trees.make_own_clip(tmp_path, truth="flow_of_{}.flo")
    with pytest.raises(FileNotFoundError, match=r"the flow file of a frame X\.png is X\.flo"):
        own_pairs(tmp_path)


def test_two_files_for_one_frame_are_an_error(tmp_path):
    fake_trees.make_own_clip(tmp_path)
    fake_trees.make_own_clip(tmp_path, truth="flow/{}.pfm")
    with pytest.raises(InputError, match=r"frame_9\.flo and .*frame_9\.pfm are both for 'frame_9'"):
        own_pairs(tmp_path)


def test_pictures_of_flow_are_not_frames(tmp_path):
    fake_trees.make_own_clip(tmp_path)
    fake_trees.write_image(tmp_path / "frame_9_flow.png", np.zeros((4, 4, 3), np.uint8))
    assert names(own_pairs(tmp_path)) == ["frame_9", "frame_10"]


def test_masks_are_read_and_are_no_frames(tmp_path):
    fake_trees.make_own_clip(tmp_path)
    hidden = np.zeros((*fake_trees.SIZE, 3), np.uint8)
    hidden[:4] = 255
    fake_trees.write_image(tmp_path / "frame_9_occ.png", hidden)
    pairs = own_pairs(tmp_path)
    assert [(pair.name, pair.image2.stem) for pair in pairs] == [
        ("frame_9", "frame_10"),
        ("frame_10", "frame_11"),
    ]
    np.testing.assert_array_equal(read_sample(pairs[0]).occluded, hidden[..., 0] > 0)
    assert read_sample(pairs[1]).occluded is None
    fake_trees.write_image(tmp_path / "frame_9_occ.png", hidden[1:])
    with pytest.raises(InputError, match=r"frame_9_occ\.png is 96x63, but its frame 96x64"):
        read_sample(pairs[0])


def test_a_manifest_may_name_masks(tmp_path):
    fake_trees.make_own_pairs(tmp_path)
    fake_trees.write_image(tmp_path / "hidden.png", np.full((*fake_trees.SIZE, 3), 255, np.uint8))
    rows = ["image1,image2,flow,occlusion", "{0}_img1.png,{0}_img2.png,{0}_flow.flo,hidden.png"]
    (tmp_path / "list.csv").write_text("\n".join(rows).format("pair0"))
    (pair,) = own_pairs(tmp_path / "list.csv")
    assert read_sample(pair).occluded.all()


def test_named_pairs_without_flow_files(tmp_path):
    fake_trees.make_own_pairs(tmp_path)
    for file in tmp_path.glob("*.flo"):
        file.unlink()
    pairs = own_pairs(tmp_path)
    assert [(pair.name, pair.image2.name, pair.truth) for pair in pairs] == [
        ("pair0", "pair0_img2.png", None),
        ("pair1", "pair1_img2.png", None),
    ]


def test_first_frames_alone_make_no_pair(tmp_path):
    fake_trees.make_own_pairs(tmp_path)
    for file in tmp_path.glob("*_img2.png"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match="no complete pair"):
        own_pairs(tmp_path)


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_manifest(suffix, delimiter, tmp_path):
    fake_trees.make_own_pairs(tmp_path / "my frames")
    rows = [
        ("image2", "image1", "flow"),
        *(
            (f"my frames/pair{n}_img2.png", f"my frames/pair{n}_img1.png", flow)
            for n, flow in [
                (0, "my frames/pair0_flow.flo"),
                (1, ""),
                (1, "my frames/pair1_flow.flo"),
            ]
        ),
    ]
    manifest = tmp_path / f"list{suffix}"
    manifest.write_text("\ufeff" + "\n".join(delimiter.join(row) for row in rows))
    pairs = own_pairs(manifest)
    assert names(pairs) == ["pair0", "pair1-pair1_img2-00002", "pair1-pair1_img2-00003"]
    assert pairs[1].truth is None
    assert read_sample(pairs[2]).flow[0, 0].all()
    with pytest.raises(InputError, match="the pair pair1-pair1_img2-00002 has no flow file"):
        list_pairs("pairs", manifest, needs_truth=True)


@pytest.mark.parametrize("place", ["", "../elsewhere/"])
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_a_folder_with_a_manifest_is_what_that_lists(place, suffix, delimiter, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    rows = [("image1", "image2", "flow")]
    for scene in ("Grove3", "Venus"):  # frames without the manifest: a clip without truth
        files = [f"{place}{scene}{end}" for end in ("_a.png", "_b.png", "/truth.flo")]
        (image1, image2), flow = fake_trees.moving_frames(2, (16, 24))
        fake_trees.write_image(folder / files[0], image1)
        fake_trees.write_image(folder / files[1], image2)
        fake_trees.write_truth(folder / files[2], flow)
        rows.append(files)
    (folder / f"pairs{suffix}").write_text("\n".join(map(delimiter.join, rows)))
    pairs = list_pairs("pairs", folder, needs_truth=True)
    assert [(p.name, p.image2.stem) for p in pairs] == [
        ("Grove3", "Grove3_b"),
        ("Venus", "Venus_b"),
    ]
    assert read_sample(pairs[1]).valid.all()


def test_a_folder_has_one_manifest(tmp_path):
    for suffix in (".csv", ".tsv"):
        (tmp_path / f"pairs{suffix}").write_text("image1,image2\n")
    with pytest.raises(InputError, match=r"pairs\.csv and .*pairs\.tsv are both"):
        own_pairs(tmp_path)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (["s/Grove3/f1 f2", "s/Venus/f1 f2"], ["Grove3", "Venus"]),
        (["s/Grove3/left/f1 f2", "s/Venus/left/f1 f2"], ["Grove3", "Venus"]),
        (
            ["s/Grove3/f1 f2", "s/Grove3/f2 f3", "s/Venus/f1 f2"],
            ["Grove3/f1", "Grove3/f2", "Venus/f1"],
        ),
        (["f_10 f_11", "f_20 f_21"], ["f_10", "f_20"]),
        (["a_img1 a_img2", "b_img1 b_img2"], ["a", "b"]),
        (["a_img1 a_img2"], ["a"]),
        (["f1 f2", "f1 f3", "f2 f3"], ["f1-f2", "f1-f3", "f2"]),
        (["a b", "a c", "a-b c"], ["a-b-00001", "a-c", "a-b-00003"]),
        (["_a x", "b_a x"], ["_a", "b_a"]),
        (["../up/a x", "b x"], ["up/a", "mine/b"]),
    ],
)
def test_pairs_of_a_manifest_are_named_by_what_tells_them_apart(frames, expected, tmp_path):
    folder = tmp_path / "mine"
    rows = []
    for row in frames:
        first, second = row.split()
        files = [f"{first}.png", str(Path(first).with_name(f"{second}.png"))]
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(b"")
        rows.append(",".join(files))
    (folder / "list.csv").write_text("\n".join(["image1,image2", *rows]))
    assert names(own_pairs(folder / "list.csv")) == expected


def test_frames_on_two_drives_are_named_by_the_drives(monkeypatch):
    monkeypatch.setattr(own, "os", SimpleNamespace(path=ntpath, sep="\\"))
    frames = [Path(r"C:\shots\a\f1.png"), Path(r"D:\shots\a\f1.png")]
    assert own._told_apart(frames) == ["C", "D"]
    assert own._told_apart([*frames, Path(r"D:\b.png")]) == ["C/shots/a/f1", "D/shots/a/f1", "D/b"]


def test_pairs_are_chosen_by_the_start_of_their_names(tmp_path):
    fake_trees.make_own_pairs(tmp_path, num_pairs=12)
    assert names(list_pairs("pairs:pair1", tmp_path)) == ["pair1", "pair10", "pair11"]
    assert data_set("pairs:pair1").label == "pair1"
    with pytest.raises(InputError, match="has a name that starts with 'street'"):
        list_pairs("pairs:street", tmp_path)
    with pytest.raises(InputError, match="unknown data set 'pairs:'"):
        data_set("pairs:")


def test_manifest_without_a_flow_column(tmp_path):
    fake_trees.make_own_pairs(tmp_path)
    (tmp_path / "list.csv").write_text("image1,image2\npair0_img1.png,pair0_img2.png\n\n")
    assert [pair.truth for pair in own_pairs(tmp_path / "list.csv")] == [None]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lacks the column 'image1'"),
        (b"image1,flow\n", "lacks the column 'image2'"),
        (b"image1,image2,flo\n", "unknown column 'flo'; did you mean 'flow'"),
        (b"image1,image2\n", "lists no pairs"),
        (b"image1,image2\npair0_img1.png\n", "line 2: the number of entries"),
        (b"image1,image2\npair0_img1.png,pair0_img2.png,x\n", "line 2: the number of entries"),
        (b"image1,image2\n,pair0_img2.png\n", "line 2: image1 is empty"),
        (b"image1,image2\n\npair0_img1.png,no.png\n", r"line 3: no file .*no\.png"),
        (b"image1,image2\n\xff\xfe,x\n", "not a table in UTF-8"),
    ],
)
def test_manifest_errors_name_the_line(content, message, tmp_path):
    fake_trees.make_own_pairs(tmp_path)
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises((InputError, FileNotFoundError), match=message):
        own_pairs(tmp_path / "list.csv")


def test_a_video_is_listed_without_truth_and_without_loss(video):
    frames, _ = fake_trees.moving_frames(4, (64, 96))
    pairs = own_pairs(video)
    assert names(pairs) == ["frame_000001", "frame_000002", "frame_000003"]
    image1, image2 = read_frames(pairs[2])
    np.testing.assert_array_equal(image1, frames[2])
    np.testing.assert_array_equal(image2, frames[3])
    assert pairs[0].truth is None


def test_a_video_where_truth_is_needed_is_refused_before_it_is_unpacked(video, monkeypatch):
    monkeypatch.setattr("dicl_flow.data.own.extract_frames", pytest.fail)
    with pytest.raises(InputError, match="a video has no ground truth"):
        list_pairs("pairs", video, needs_truth=True)


def test_video_frames_come_one_at_a_time(video):
    frames = video_frames(video)
    assert next(frames).shape == (64, 96, 3)
    assert len(list(frames)) == 3


def test_a_lost_frame_is_an_error_and_not_the_next_one(video):
    data = video.read_bytes()
    video.write_bytes(data[: len(data) * 6 // 10])
    frames = video_frames(video)
    assert [next(frames).shape for _ in range(2)] == [(64, 96, 3)] * 2
    with pytest.raises(InputError, match=r"clip\.mkv: frame 3, counted from 1, .*folder"):
        next(frames)
    with pytest.raises(InputError, match="frame 3, counted from 1"):
        own_pairs(video)


def test_a_damaged_video_is_named(video):
    video.write_bytes(b"not a video" * 100)
    with pytest.raises(InputError, match=r"clip\.mkv cannot be decoded"):
        own_pairs(video)


def test_without_pyav_the_extra_is_named(video, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"pip install 'dicl-flow\[video\]'"):
        own_pairs(video)


def test_a_video_of_one_frame_has_no_pair(tmp_path):
    path = tmp_path / "one.gif"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("gif", rate=10)
        stream.height, stream.width, stream.pix_fmt = 16, 16, "rgb8"
        picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(picture))
        container.mux(stream.encode())
    with pytest.raises(FileNotFoundError, match=r"no complete pair under .*one\.gif"):
        own_pairs(path)


def test_neither_folder_nor_manifest_nor_video(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder, manifest or video"):
        own_pairs(tmp_path / "nothing")
    (tmp_path / "list.txt").write_text("image1,image2\n")
    with pytest.raises(InputError, match=r"nor a manifest \(\.csv, \.tsv\)"):
        own_pairs(tmp_path / "list.txt")
