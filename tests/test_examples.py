"""Each example does what it says, on frames whose motion is known."""

import runpy
import sys
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

pytestmark = pytest.mark.heavy

EXAMPLES = Path(__file__).parents[1] / "examples"
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
    assert all(len(path.read_text().splitlines()) <= 40 for path in EXAMPLES.glob("*.py"))


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
    paths = [tmp_path / f"frame{index}.png" for index in range(3)]
    for path, view in zip(paths, views, strict=False):
        cv2.imwrite(str(path), view)
    run_example(monkeypatch, "track_points", "90,60", "1,64", "--", *paths)
    lines = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["90.0,60.0", "1.0,64.0"]
    for (found, edge), shake in zip(lines[1:], SHAKE[1:], strict=False):
        place = np.array(found.split(","), float)
        np.testing.assert_allclose(place, np.array([90, 60]) - shake, atol=1)
        assert edge == "lost"  # it left at the left side


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
    assert "move beside the camera" in capsys.readouterr().out
