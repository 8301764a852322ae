"""Each example does what it says, on frames whose motion is known."""

import runpy
import sys
from itertools import pairwise
from pathlib import Path

import cv2
import fake_trees
import numpy as np
import pytest

import dicl_flow

pytestmark = pytest.mark.heavy

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAKE = np.array([(0, 0), (5, -3), (-4, 4), (3, 2)])  # px, where the camera looks


@pytest.fixture(scope="module")
def views():
    """A large smooth picture seen through a window that shakes, (H, W, 3) BGR."""
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (200, 280, 3)).astype(np.float32)
    picture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)
    return [picture[20 + y : 148 + y, 20 + x : 212 + x].astype(np.uint8) for x, y in SHAKE]


def run_example(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_examples_are_short():
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))


def test_stabilize(monkeypatch, tmp_path, views):
    shaky, steady = tmp_path / "shaky.avi", tmp_path / "steady.mp4"
    video = cv2.VideoWriter(str(shaky), cv2.VideoWriter_fourcc(*"MJPG"), 25, (192, 128))
    for view in views:
        video.write(view)
    video.release()
    run_example(monkeypatch, "stabilize", shaky, steady)
    source, frames = cv2.VideoCapture(str(steady)), []
    while (found := source.read())[0]:
        frames.append(found[1][16:-16, 16:-16].astype(float))
    assert len(frames) == len(views)
    inner = [view[16:-16, 16:-16].astype(float) for view in views]
    before, after = (
        np.mean([np.abs(a - b).mean() for a, b in pairwise(clip)]) for clip in (inner, frames)
    )
    assert after < before / 3


def test_track_points(monkeypatch, tmp_path, capsys, views):
    paths = [tmp_path / f"frame{number}.png" for number in (8, 9, 10)]  # not as the shell sorts
    for path, view in zip(paths, views, strict=False):
        cv2.imwrite(str(path), view)
    run_example(monkeypatch, "track_points", tmp_path / "frame*.png", "90,60", "1,64")
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in printed] == ["0", "1", "2"]
    lines = [words[1:] for words in printed]
    assert lines[0] == ["90.0,60.0", "1.0,64.0"]
    for (found, _), shake in zip(lines[1:], SHAKE[1:], strict=False):
        place = np.array(found.split(","), float)
        np.testing.assert_allclose(place, np.array([90, 60]) - shake, atol=1)
    assert lines[1][1] == "hidden"  # it left at the left side


def test_moving_objects(monkeypatch, tmp_path, capsys, views):
    first, second, third = (cv2.resize(view, (384, 256)) for view in views[:3])
    patch = third[80:160, 120:220]
    first[80:160, 120:220], second[86:166, 132:232] = patch, patch
    paths = [tmp_path / name for name in ("a.png", "b.png", "out.png")]
    for path, view in zip(paths, (first, second), strict=False):
        cv2.imwrite(str(path), view)
    run_example(monkeypatch, "moving_objects", *paths)
    red = cv2.imread(str(paths[2])).astype(int) - first
    marked = (red[..., 2] > red[..., 0] + 20) & (red[..., 2] > red[..., 1] + 20)
    assert marked[90:150, 130:210].mean() > 0.5
    assert marked[:, 280:].mean() < 0.1
    assert "move independently of the camera" in capsys.readouterr().out


def test_moving_objects_finds_a_small_ball(monkeypatch, tmp_path):
    """28 px wide, moving 8 px: its flow is right, but not sure to a pixel."""
    frames, _ = fake_trees.moving_frames(2, (128, 192), seed=1, motion=(3, 1))
    paths = [tmp_path / name for name in ("a.png", "b.png", "out.png")]
    for path, frame, x in zip(paths, frames, (90, 101), strict=False):
        picture = np.ascontiguousarray(frame[..., ::-1])
        cv2.circle(picture, (x, 64), 14, (40, 60, 160), -1, cv2.LINE_AA)
        cv2.imwrite(str(path), picture)
    run_example(monkeypatch, "moving_objects", *paths)
    changed = (cv2.imread(str(paths[2])) != cv2.imread(str(paths[0]))).any(2)
    y, x = np.mgrid[:128, :192]
    distance = np.hypot(x - 90, y - 64)
    assert changed[distance < 13].mean() > 0.7
    assert changed[distance > 40].mean() < 0.01


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("moving_objects", "required: frame1, frame2, output"),
        ("moving_objects a.png no.png out.png", "no such file: no.png"),
        ("moving_objects a.png small.png out.png", "must have one size"),
        ("moving_objects a.png b.png out.xyz", "unknown image extension"),
        ("moving_objects a.png b.png a.png", "a.png is the input as well"),
        ("stabilize", "required: shaky, steady"),
        ("stabilize no.mp4 out.mp4", "no video, folder or camera no.mp4"),
        ("stabilize text.mp4 out.mp4", "cannot be decoded as a video"),
        ("stabilize frames frames", "frames is the input as well"),
        ("stabilize text.mp4 a.png/out.mp4", "a.png is not a folder"),
        ("track_points frames", "required: points"),
        ("track_points a.png b.png 3,4", "invalid point value: 'b.png'"),
        ("track_points frames 3", "invalid point value: '3'"),
        ("track_points frames 300,2", "the point 300,2 lies outside the frames"),
        ("track_points nowhere 3,4", "no video, folder or camera nowhere"),
    ],
)
def test_wrong_use_is_one_sentence(
    monkeypatch, tmp_path, capsys, small_weights, views, words, message
):
    load = dicl_flow.load
    monkeypatch.setattr(dicl_flow, "load", lambda: load(small_weights, "cpu"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.mp4").write_text("no video")
    for name, view in (("a", views[0]), ("b", views[1]), ("small", views[0][1:])):
        cv2.imwrite(f"{name}.png", view)
        fake_trees.write_image(tmp_path / "frames" / f"{name}.png", views[0])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as exit_info:
        run_example(monkeypatch, *words.split())
    assert exit_info.value.code == 2
    *usage, error = capsys.readouterr().err.splitlines()
    assert usage[0].startswith("usage: ")
    assert "error: " in error
    assert message in error
    assert sorted(tmp_path.rglob("*")) == before
