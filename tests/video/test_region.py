"""Statistics of a region or a mask, in px per frame and px per second."""

import json

import cv2
import fake_trees
import numpy as np
import pytest
import torch
from clips import KnownMotion, know_motion, read_rows, write_images, write_video

FRAMES, _ = fake_trees.moving_frames(4, (32, 48))


class LeftHalf(KnownMotion):
    """The left half moves by (3, 4), the rest not at all."""

    def match(self, before, after):
        height, width = after.shape[:2]
        answer = torch.zeros(1, 3 * (1 + self.backward), height, width)
        answer[:, 0, :, : width // 2], answer[:, 1, :, : width // 2] = 3.0, 4.0
        answer[:, 2] = torch.linspace(0, 1, width)
        return answer


@pytest.fixture
def video(run, monkeypatch):
    know_motion(monkeypatch, LeftHalf)
    return lambda *arguments: run("video", *arguments, "--device", "cpu")


@pytest.fixture
def clip(tmp_path):
    return write_video(tmp_path / "clip.mkv", FRAMES)


def write_mask(path, width=48, columns=slice(0, 24), value=255):
    mask = np.zeros((32, width), np.uint8)
    mask[:, columns] = value
    cv2.imwrite(str(path), mask)
    return path


@pytest.mark.parametrize(
    ("options", "length", "moving"),
    [
        ([], 2.5, 0.5),
        (["--region", "0,0,24,32"], 5, 1),
        (["--region", "24,8,24,10"], 0, 0),
        (["--region", "12, 0, 24, 1"], 2.5, 0.5),
        (["--mask", "mask.png"], 5, 1),
        (["--mask", "mask.png", "--scale", 0.5], 5, 1),
    ],
)
def test_statistics_are_those_of_the_region(
    video, clip, tmp_path, monkeypatch, options, length, moving
):
    monkeypatch.chdir(tmp_path)
    write_mask(tmp_path / "mask.png", value=1)
    code, out, _ = video(clip, "-o", "s.npy", "--stats", "s.csv", *options, "--json")
    assert code == 0
    rows = read_rows(tmp_path / "s.csv")
    assert len(rows) == 3
    for row in rows:
        assert float(row["mean_length"]) == pytest.approx(length)
        assert float(row["mean_speed_px_per_s"]) == pytest.approx(10 * length)  # 10 frames/s
        assert float(row["max_speed_px_per_s"]) == 10 * float(row["max_length"])
        assert float(row["moving_share"]) == pytest.approx(moving)
        assert float(row["known"]) == 1
    report = json.loads(out)
    assert report["mean_length_px_per_frame"] == pytest.approx(length)
    assert report["mean_speed_px_per_s"] == pytest.approx(10 * length)
    said = report.get("statistics", "")
    assert ("of the region" in said) == ("--region" in options)
    assert ("of the pixels of mask.png" in said) == ("--mask" in options)
    assert ("in px of frames scaled by 0.5" in said) == ("--scale" in options)
    confidence = np.linspace(0, 1, 48)[:24].mean()
    if options[:1] == ["--mask"] and "--scale" not in options:
        assert float(rows[0]["mean_confidence"]) == pytest.approx(confidence, rel=1e-3)


def test_images_have_the_speed_of_their_rate_if_it_is_given(video, tmp_path):
    frames = write_images(tmp_path / "frames", FRAMES)
    speeds = []
    for number, options in enumerate(([], ["--fps", 30], ["--fps", 30, "--stride", 2])):
        table = tmp_path / f"{number}.csv"
        assert video(frames, "-o", tmp_path / f"{number}.npy", "--stats", table, *options)[0] == 0
        speeds.append(read_rows(table)[0]["mean_speed_px_per_s"])
    assert speeds == ["", "75", "37.5"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--region", "1,2,3"], "--region must be x,y,width,height in whole pixels"),
        (["--region", "0,0,0,5"], "--region must be x,y,width,height in whole pixels"),
        (["--region", "-1,0,5,5"], "--region must be x,y,width,height in whole pixels"),
        (["--region", "40,0,9,5"], "must lie in the frames, which are 48x32, got 40,0,9,5"),
        (["--mask", "small.png"], "small.png must have the size of the frames, 48x32, got 40x32"),
        (["--mask", "black.png"], "black.png is black everywhere"),
        (["--mask", "no.png"], "no.png"),
        (
            ["--mask", "mask.png", "--region", "0,0,5,5"],
            "both --region and --mask select pixels for the statistics: give one",
        ),
        (["--region", "0,0,1,1", "--scale", 0.1], "--scale 0.1 leaves no pixel of the region"),
    ],
)
def test_a_wrong_region_is_refused_before_the_work(
    video, clip, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    write_mask(tmp_path / "mask.png")
    write_mask(tmp_path / "small.png", width=40)
    write_mask(tmp_path / "black.png", value=0)
    before = set(tmp_path.iterdir())
    code, _, error = video(clip, "-o", "s.npy", "--stats", "s.csv", *options)
    assert code == 2
    assert message in error
    assert set(tmp_path.iterdir()) == before


def test_a_region_needs_statistics(video, clip, tmp_path):
    code, _, error = video(clip, "-o", tmp_path / "s.npy", "--region", "0,0,5,5")
    assert code == 2
    assert "give --stats" in error


def test_a_changed_mask_is_another_setting(video, clip, tmp_path):
    mask = write_mask(tmp_path / "mask.png")
    command = (clip, "-o", tmp_path / "s.npy", "--stats", tmp_path / "s.csv", "--mask", mask)
    assert video(*command)[0] == 0
    assert "already finished" in video(*command)[2]
    write_mask(mask, columns=slice(3, 9))
    code, _, error = video(*command)
    assert code == 2
    assert f"mask ({mask}) changed since" in error
    code, _, error = video(*command[:-2])
    assert f"mask was {mask} and is not given now" in error
