"""The command `track`: what it writes and prints; every wrong use is one sentence."""

import json
import os

import fake_trees
import numpy as np
import pytest
from clips import read_video, write_images, write_video

from dicl_flow.tracking.tracks import read_tracks

FRAMES, _ = fake_trees.moving_frames(6, (48, 64), motion=(2, 1))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder in which commands run: a clip, points, a folder of frames."""
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "clip.mkv", FRAMES)
    write_video(tmp_path / "one.mkv", FRAMES[:1])
    write_images(tmp_path / "shots", FRAMES)
    (tmp_path / "p.csv").write_text("frame,x,y\n3,20,20\n0,10,12\n")
    (tmp_path / "out.csv").write_text("frame,x,y\n0,64,20\n")
    (tmp_path / "late.csv").write_text("frame,x,y\n6,20,20\n")
    (tmp_path / "other.csv").write_text("t,x,y\n0,20,20\n")
    return tmp_path


@pytest.fixture
def track(run, tiny_weights):
    how = ("-w", tiny_weights, "--device", "cpu", "--intervals", "1,2", "--json")
    return lambda words: run("track", *words.split(), *how)


def states(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_points_become_files_and_a_video_and_are_not_computed_twice(track, place):
    words = "clip.mkv --points p.csv -o t.npz -o t.csv --video o.mp4"
    code, out, error = track(words)
    assert code == 0, error
    report = json.loads(out)
    assert report["written"] == ["t.npz", "t.csv", "o.mp4"]
    assert (report["frames"], report["points"], report["references"]) == (6, 2, "0, 3")
    assert report["flows_per_frame"] == 8
    tracks = read_tracks(place / "t.npz")
    assert tracks.points.shape == (2, 6, 2)
    np.testing.assert_array_equal(tracks.points[[0, 1], [3, 0]], [[20, 20], [10, 12]])
    assert tracks.error[0, 3] == 0
    np.testing.assert_allclose(tracks.times, np.arange(6) / 10)
    assert len(read_video(place / "o.mp4")) == 6
    before = states(place)
    code, out, error = track(words)
    assert (code, error) == (0, "already finished; --restart computes it again\n")
    assert json.loads(out)["already_finished"] == ["t.npz", "t.csv", "o.mp4"]
    assert states(place) == before
    code, _, error = track(words + " --scale 0.5")
    assert code == 2
    assert "scale was 1 and is 0.5 now" in error
    os.utime(place / "p.csv", (1, 1))
    assert "points (" in track(words)[2]
    assert not list(place.glob("*.parts"))


def test_every_pixel_of_a_folder_of_frames_becomes_maps_named_after_them(track, place, monkeypatch):
    monkeypatch.setattr("dicl_flow.tracking.tracker.CUT", np.inf)  # the network is random
    code, _, error = track("shots --dense --reference 2,4 -o maps/ --format st.exr --video d.mkv")
    assert code == 0, error
    folders = sorted(path.name for path in (place / "maps").iterdir())
    assert folders == ["reference_000002", "reference_000004"]
    first = sorted(path.name for path in (place / "maps" / folders[0]).iterdir())
    assert first == [f"shot_{number}.st.exr" for number in range(6)]
    assert len(read_video(place / "d.mkv")) == 6


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(track, place):
    before = states(place)
    code, out, _ = track("clip.mkv --grid 16 --reference 0,5 -o t.npz --dry-run")
    report = json.loads(out)
    assert (code, report["frames"], report["points"]) == (0, 6, 24)
    assert report["flows_per_frame"] == 8
    assert report["kept_megabytes"] > 0
    assert states(place) == before


WRONG = {
    "clip.mkv -o t.npz": "give one of --points, --grid and --dense, got none",
    "clip.mkv --points p.csv --grid 8 -o t.npz": "got --points and --grid",
    "clip.mkv --points p.csv --reference 0 -o t.npz": "--reference is for --grid and --dense",
    "clip.mkv --points out.csv -o t.npz": "the point 64,20 lies outside the frames",
    "clip.mkv --points late.csv -o t.npz": "a point is frame 6, but the last frame is 5",
    "clip.mkv --points other.csv -o t.npz": "the first line must be frame,x,y, got t, x, y",
    "clip.mkv --points no.csv -o t.npz": "no such file: no.csv",
    "clip.mkv --points p.csv -o t.npz --start 1": "a point is frame 0, which --start or --stride",
    "one.mkv --points p.csv -o t.npz": "a track needs at least two frames, and the clip has one",
    "clip.mkv --grid 8 --end 1 -o t.npz": "a track needs at least two frames",
    "clip.mkv --grid 8 --reference 9 -o t.npz": "a reference is frame 9, but the last frame is 5",
    "clip.mkv --dense --reference 6 -o maps": "a reference is frame 6, but the last frame is 5",
    "clip.mkv --grid 8 --reference a -o t.npz": "--reference must be whole numbers with commas",
    "clip.mkv --grid 99 -o t.npz": "--grid must be 1 to 48 px for these frames, got 99",
    "clip.mkv --dense -o t.npz": "t.npz: --dense writes one folder of ST maps",
    "clip.mkv --dense -o maps --format flo": "unknown --format 'flo'; known: st.exr",
    "clip.mkv --grid 8 -o t.npz --format st.exr": "--format is for --dense",
    "clip.mkv --grid 8 -o t.txt": "t.txt: tracks must end in .npz or .csv",
    "clip.mkv --points p.csv -o p.csv": "p.csv is the input as well",
    "clip.mkv --grid 8 -o t.npz --video clip.mkv": "clip.mkv is the input as well",
    "clip.mkv --grid 8 -o t.npz --video o.npy": "--video must end in .mp4",
    "clip.mkv --grid 8 -o t.npz --fps 10": "--fps and --encoder are for --video",
    "shots --dense -o shots": "shots is the input as well",
    "clip.mkv --grid 8 -o t.npz --scale 9": "--scale must be a number, above 0 and at most 8",
    "no.mkv --grid 8 -o t.npz": "no video, folder or camera no.mkv",
    "clip.mkv shots --grid 8 -o t.npz": "got 2 inputs, one clip is taken",
    "camera:x --grid 8 -o t.npz": "a camera must be camera:0",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_use_is_one_sentence_before_any_work(track, place, words, monkeypatch):
    monkeypatch.setattr("dicl_flow.cli.track.Track.load", None)
    before = states(place)
    code, out, error = track(words)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert WRONG[words] in error
    assert states(place) == before
    assert not list(place.glob("*.parts"))


def test_intervals_must_be_numbers(run, tiny_weights, place):
    words = ("--grid", 8, "-o", "t.npz", "--intervals", "1,two", "-w", tiny_weights)
    code, _, error = run("track", "clip.mkv", *words)
    assert code == 2
    assert "--intervals must be whole numbers with commas, as 0,120, got '1,two'" in error
