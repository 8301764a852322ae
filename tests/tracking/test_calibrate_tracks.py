"""The script that fits the calibration of tracks runs, on a small scale, from clips to file."""

import sys
from hashlib import sha256

import fake_trees
import numpy as np
import pytest

from benchmarks import calibrate_tracks
from dicl_flow.errors import InputError
from dicl_flow.tracking.reliability import TrackCalibration


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["calibrate_tracks.py", *map(str, arguments)])
    calibrate_tracks.main()


@pytest.mark.slow
def test_a_calibration_is_fitted_judged_and_written(
    small_scenes, tiny_weights, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "calibration.json"
    small = ["--clips", 2, "--frames", 2, "--size", "64x48", "--starts", 1, "--pixels", 400]
    small += ["--tuning", 1, "--points", 50]
    call(monkeypatch, "procedural", "-o", output, "-w", tiny_weights, "--device", "cpu", *small)
    found = TrackCalibration.from_json(output.read_text())
    assert found.fitted
    assert found.clips == 1
    assert found.weights == sha256(tiny_weights.read_bytes()).hexdigest()
    printed = capsys.readouterr().out
    assert "accuracy" in printed
    assert f"wrote {output}" in printed


def test_one_clip_is_not_enough(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="at least 2 clips"):
        call(monkeypatch, "procedural", "-o", tmp_path / "a.json", "--clips", 1)
    assert not list(tmp_path.iterdir())


def test_held_out_photographs_are_left_out(tmp_path):
    for number in range(40):
        fake_trees.write_image(tmp_path / f"{number}.png", np.full((4, 4, 3), number, np.uint8))
    used = calibrate_tracks.trained_on(tmp_path)
    digests = {p: int(sha256(p.read_bytes()).hexdigest(), 16) for p in tmp_path.glob("*.png")}
    assert set(used) == {path for path, digest in digests.items() if digest % 10}
    assert 0 < len(used) < 40
