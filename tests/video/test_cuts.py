"""Scene cuts are found, and no flow crosses them."""

import re

import fake_trees
import numpy as np
import pytest
from clips import KnownMotion, know_motion, read_rows, write_images, write_video

import dicl_flow
from dicl_flow.data.datasets import kitti_scenes
from dicl_flow.errors import InputError
from dicl_flow.video import (
    Checkpoint,
    FlowStack,
    Selection,
    StatisticsTable,
    open_source,
    run,
)
from dicl_flow.video.flows import CUT, unexplained

pytestmark = pytest.mark.heavy

SIZE = (48, 64)
ONE, TWO, THREE = (fake_trees.moving_frames(3, SIZE, seed, motion=(4, 0))[0] for seed in (0, 7, 20))
CUTS_AT = (2, 3)
FILM = [*ONE, TWO[0], *THREE]
"""Three scenes; that of the middle is one frame long."""


@pytest.fixture
def video(run, monkeypatch):
    """Run the command, the network replaced by one that knows the motion."""
    know_motion(monkeypatch)
    return lambda *words: run("video", *words)


def stack_of(tmp_path, frames, cuts, name="s", stop_after=None, sequence=KnownMotion):
    """The flows of a film, as `run` writes them; with `stop_after` the run is stopped once."""
    clip, output = write_images(tmp_path / "film", frames), tmp_path / f"{name}.npy"
    source = open_source(str(clip))
    for most in [stop_after, None] if stop_after else [None]:
        with Checkpoint(output, {}) as checkpoint:
            writers = [
                FlowStack(output, checkpoint.folder),
                StatisticsTable(output.with_suffix(".csv"), checkpoint.folder),
            ]
            done = []
            run(
                *(source, Selection(on_error="skip"), sequence(backward=False), writers),
                checkpoint,
                watch=lambda flow, most=most, done=done: done.append(flow) or len(done) != most,
                cuts=cuts,
            )
    return np.load(output)


def test_the_measure_tells_cuts_from_motion():
    still = np.zeros((*SIZE, 2), np.float32)
    right = still + np.float32([4, 0])
    assert unexplained(ONE[0], ONE[1], right) < 0.1 < unexplained(ONE[0], ONE[1], still)
    assert unexplained(ONE[0], TWO[0], right) > 0.7
    deep = (frame.astype(np.uint16) * 257 for frame in (ONE[0], ONE[1]))
    assert unexplained(*deep, right) == unexplained(ONE[0], ONE[1], right)


def test_fast_fades_are_cuts_and_slow_ones_are_not():
    """Over 4 frames to black, and over 50 frames: the first step, then the last."""
    right = np.zeros((*SIZE, 2), np.float32) + np.float32([4, 0])
    for length, expected in ((4, [True, True]), (50, [False, True])):
        found = []
        for step in (0, length - 2):
            levels = 1 - step / length, 1 - (step + 1) / length
            dark = (
                np.rint(frame * level).astype(np.uint8)
                for frame, level in zip(ONE, levels, strict=False)
            )
            found.append(unexplained(*dark, right) > CUT)
        assert found == expected


def test_by_choice_the_flow_of_a_cut_is_blank_or_held(tmp_path):
    whole = stack_of(tmp_path, FILM, "estimate")
    assert np.isfinite(whole).all()
    assert len({float(flow[0, 0, 0]) for flow in whole}) == len(whole) == 6  # each is another
    blank = stack_of(tmp_path, FILM, "blank", "blank")
    expected = whole.copy()
    expected[list(CUTS_AT)] = np.nan
    np.testing.assert_array_equal(blank, expected)
    held = stack_of(tmp_path, FILM, "hold", "held")
    expected[list(CUTS_AT)] = whole[CUTS_AT[0] - 1]
    np.testing.assert_array_equal(held, expected)
    for name in ("s", "blank", "held"):  # whatever is written, the table knows
        rows = read_rows(tmp_path / f"{name}.csv")
        assert [int(row["scene_cut"]) for row in rows] == [n in CUTS_AT for n in range(6)]
    assert [row["known"] for row in read_rows(tmp_path / "blank.csv")][2] == "0"


@pytest.mark.parametrize("stop_after", [1, 3, 4, 5])
def test_what_is_held_is_the_same_after_a_stop(tmp_path, stop_after):
    frames = [*FILM, *TWO]
    whole = stack_of(tmp_path, frames, "hold", "whole")
    np.testing.assert_array_equal(stack_of(tmp_path, frames, "hold", "two", stop_after), whole)
    one, two = ((tmp_path / f"{name}.csv").read_text() for name in ("whole", "two"))
    assert one == two


def test_before_the_first_flow_there_is_nothing_to_hold(tmp_path):
    held = stack_of(tmp_path, [TWO[0], *ONE], "hold", stop_after=1)
    assert np.isnan(held[0]).all()
    assert np.isfinite(held[1:]).all()


def test_an_unknown_choice_is_refused(tmp_path):
    with pytest.raises(InputError, match="did you mean 'blank'"):
        stack_of(tmp_path, FILM, "blnk")


def test_the_command_blanks_cuts(video, tmp_path):
    clip = write_video(tmp_path / "film.mkv", FILM)
    assert video(clip, "-o", tmp_path / "flows", "--cuts", "blank")[0] == 0
    for number in range(6):
        flow = dicl_flow.read_flow(tmp_path / "flows" / f"frame_{number:06d}.flo")
        assert np.isfinite(flow).any() == (number not in CUTS_AT)


# --- KITTI --------------------------------------------------------------------------------------

WIDE, _ = fake_trees.moving_frames(2, (48, 80), 3, motion=(4, 0))


def kitti_folder(folder, scenes=(ONE, WIDE, TWO)):
    for number, frames in enumerate(scenes):
        for frame, end in zip(frames[:2], ("10", "11"), strict=True):
            fake_trees.write_image(folder / f"{number:06d}_{end}.png", frame)
    return folder


def test_kitti_pairs_each_10_with_its_11_only(run, tiny_weights, tmp_path):
    """Pairs of several sizes, with the network itself: it is asked for one size at a time."""
    frames, flows = kitti_folder(tmp_path / "image_2"), tmp_path / "flows"
    network = ("-w", tiny_weights, "--device", "cpu", "--precision", "fp32")
    code, out, error = run("video", frames, "-o", flows, *network)
    assert code == 0
    assert error == "KITTI's pairs: flow is estimated from each _10 to its _11 only\n"
    assert re.search(r"^flows +3$", out, re.MULTILINE)
    names = [f"{number:06d}_10.flo" for number in range(3)]
    assert sorted(file.name for file in flows.iterdir()) == names
    estimator = dicl_flow.load(tiny_weights, "cpu", "fp32")
    for name, scene in zip(names, (ONE, WIDE, TWO), strict=True):
        found = dicl_flow.read_flow(flows / name)
        np.testing.assert_allclose(found, estimator(*scene[:2]).flow, rtol=1e-4, atol=1e-4)


def test_a_run_of_pairs_goes_on_where_it_was(video, tmp_path):
    frames, flows = kitti_folder(tmp_path / "image_2"), tmp_path / "flows"
    (frames / "000001_11.png").write_bytes(b"broken")
    code, _, error = video(frames, "-o", flows)
    assert code == 2
    assert "frame 3 (000001_11)" in error
    done = (flows / "000000_10.flo").stat().st_mtime_ns
    fake_trees.write_image(frames / "000001_11.png", WIDE[1])
    code, out, _ = video(frames, "-o", flows)
    assert code == 0
    assert re.search(r"^flows of earlier runs +1$", out, re.MULTILINE)
    assert (flows / "000000_10.flo").stat().st_mtime_ns == done
    assert len(list(flows.iterdir())) == 3


def test_frames_of_finished_pairs_must_not_change(video, tmp_path):
    frames = kitti_folder(tmp_path / "image_2", (ONE, TWO, THREE))
    (frames / "000002_11.png").write_bytes(b"broken")
    assert video(frames, "-o", tmp_path / "flows")[0] == 2
    (frames / "000001_11.png").write_bytes((frames / "000001_10.png").read_bytes())
    code, _, error = video(frames, "-o", tmp_path / "flows")
    assert code == 2
    assert "1 changed since" in error


def test_an_array_of_pairs_has_one_size(video, tmp_path):
    frames = kitti_folder(tmp_path / "alike", (ONE, TWO, THREE))
    assert video(frames, "-o", tmp_path / "s.npy")[0] == 0
    assert np.load(tmp_path / "s.npy").shape == (3, *SIZE, 2)  # nothing between the pairs
    code, _, error = video(kitti_folder(tmp_path / "mixed"), "-o", tmp_path / "m.npy")
    assert code == 2
    assert "have one size; this is 80x48 after 64x48; write a folder" in error
    code, _, error = video(frames, "-o", tmp_path / "flows", "--stride", 2)
    assert code == 2
    assert "no pair is selected" in error


def test_other_names_are_one_scene(tmp_path):
    kitti = [tmp_path / f"{number:06d}_{end}.png" for number in range(2) for end in (10, 11)]
    assert kitti_scenes(kitti) == ("000000", "000000", "000001", "000001")
    for other in ("shot_10", "000002_12", "0000_10", "000002_10b"):
        assert kitti_scenes([*kitti, tmp_path / f"{other}.png"]) == ()
