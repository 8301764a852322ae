"""A finished run is not computed again, and its output not overwritten, unless that is asked."""

import json
import os

import fake_trees
import numpy as np
import pytest
from clips import connect_camera, know_motion, write_images, write_video

FRAMES, _ = fake_trees.moving_frames(6, (32, 48))
ALREADY = "already finished; --restart computes it again"


@pytest.fixture
def video(run, monkeypatch):
    know_motion(monkeypatch)
    return lambda *arguments: run("video", *arguments, "--device", "cpu")


@pytest.fixture
def clip(tmp_path):
    return write_video(tmp_path / "clip.mkv", FRAMES)


def states(folder):
    """When each file was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_same_command_again_does_nothing(video, clip, tmp_path):
    outputs = ("-o", tmp_path / "s.npy", "-o", tmp_path / "flows", "--stats", tmp_path / "s.csv")
    assert video(clip, *outputs)[0] == 0
    before = states(tmp_path)
    code, out, error = video(clip, *outputs, "--json")
    assert (code, error.strip()) == (0, ALREADY)
    report = json.loads(out)
    assert (report["flows"], report["missing_flows"]) == (5, 0)
    assert states(tmp_path) == before
    assert video(clip, *outputs, "--restart")[0] == 0
    assert states(tmp_path)[tmp_path / "s.npy"] > before[tmp_path / "s.npy"]
    assert ALREADY in video(clip, *outputs)[2]
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--end", 3], "end was not given and is 3 now"),
        (["--stride", 2], "stride was 1 and is 2 now"),
        (["-o", "more"], "output was "),
    ],
)
def test_other_settings_are_refused_and_named(video, clip, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    assert video(clip, "-o", "s.npy")[0] == 0
    before = states(tmp_path)
    code, _, error = video(clip, "-o", "s.npy", *options)
    assert code == 2
    assert f"s.npy is the result of a finished run with other settings: {words}" in error
    assert error.strip().endswith("or start again with --restart")
    assert states(tmp_path) == before
    assert video(clip, "-o", "s.npy", *options, "--restart")[0] == 0


def test_a_changed_input_is_refused_and_named(video, clip, tmp_path):
    output = tmp_path / "s.npy"
    assert video(clip, "-o", output)[0] == 0
    write_video(clip, FRAMES[:3])
    os.utime(clip, ns=(0, 0))
    code, _, error = video(clip, "-o", output)
    assert code == 2
    assert f"input ({clip}) changed since" in error
    assert len(np.load(output)) == 5
    assert video(clip, "-o", output, "--restart")[0] == 0
    assert len(np.load(output)) == 2


def test_changed_images_are_refused_and_counted(video, tmp_path):
    frames, flows = write_images(tmp_path / "frames", FRAMES), tmp_path / "flows"
    assert video(frames, "-o", flows)[0] == 0
    assert ALREADY in video(frames, "-o", flows)[2]
    os.utime(frames / "shot_5.png", ns=(0, 0))
    fake_trees.write_image(frames / "shot_6.png", FRAMES[0])
    code, _, error = video(frames, "-o", flows)
    assert code == 2
    assert "flows is the result of a finished run of other frames (1 added, 1 changed" in error


@pytest.mark.parametrize("gone", ["s.npy", "flows/frame_000001.flo"])
def test_an_output_that_is_gone_is_computed_again(video, clip, tmp_path, gone):
    outputs = ("-o", tmp_path / "s.npy", "-o", tmp_path / "flows")
    assert video(clip, *outputs)[0] == 0
    (tmp_path / gone).unlink()
    code, _, error = video(clip, *outputs)
    assert (code, error) == (0, "")
    assert (tmp_path / gone).exists()


def test_slow_motion_is_finished_too(run, clip, tmp_path, monkeypatch):
    know_motion(monkeypatch)
    command = ("interpolate", clip, "-o", tmp_path / "slow", "--factor", 2, "--device", "cpu")
    assert run(*command)[0] == 0
    code, _, error = run(*command)
    assert (code, error.strip()) == (0, ALREADY)


def test_a_camera_is_recorded_again(video, tmp_path, monkeypatch):
    connect_camera(monkeypatch, FRAMES)
    for _ in range(2):
        code, _, error = video("camera:0", "-o", tmp_path / "s.npy")
        assert (code, error) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["s.npy"]
