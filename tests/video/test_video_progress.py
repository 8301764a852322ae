"""The progress of a video is right for people, for log files and for programs."""

import warnings
from threading import Semaphore, active_count

import fake_trees
import pytest
from clips import KnownMotion, know_motion, write_images, write_video

from dicl_flow.cli import main
from dicl_flow.cli.clips import VideoProgress, show_progress
from dicl_flow.cli.options import Settings
from dicl_flow.training import run_folder
from dicl_flow.video import Checkpoint, FlowStack, Selection, Source, State, open_source, run
from dicl_flow.video.frames import LOGGING

pytestmark = pytest.mark.heavy

FRAMES, _ = fake_trees.moving_frames(6, (32, 48), motion=(4, 0))


def progress_of(source, output, watch=lambda flow: True):
    """What `on_progress` is told in a run."""
    told = []
    with Checkpoint(output, {}) as checkpoint:
        writers = [FlowStack(output, checkpoint.folder)]
        run(
            *(source, Selection(), KnownMotion(backward=False), writers, checkpoint),
            watch=watch,
            on_progress=lambda done, total: told.append((done, total)),
        )
    return told


def test_programs_are_told_of_each_flow(tmp_path):
    source = open_source(str(write_images(tmp_path / "frames", FRAMES)))
    output = tmp_path / "s.npy"
    numbers = iter(range(1, 6))
    stopped = progress_of(source, output, watch=lambda flow: next(numbers) < 2)
    assert stopped == [(1, 5), (2, 5)]
    assert progress_of(source, output) == [(3, 5), (4, 5), (5, 5)]  # earlier runs are counted


def test_a_run_that_had_nothing_left_to_estimate_tells_no_size(capsys):
    summary = VideoProgress(5, 5, print, print).summary(State())
    assert summary["size"] is None
    Settings().report(summary)
    assert "size" not in capsys.readouterr().out


def test_a_source_that_does_not_say_its_length_has_no_total(tmp_path):
    counted = open_source(str(write_images(tmp_path / "frames", FRAMES)))
    endless = Source(counted.shots, counted.stamp)
    assert progress_of(endless, tmp_path / "s.npy")[-1] == (5, None)


def test_the_line_says_how_far_and_how_long():
    assert VideoProgress(0, None, print, print).line() == "0 flows, 0 frames/s"
    watch = VideoProgress(20, 899, print, lambda watch: None)
    assert watch.line() == "20 of 899 flows, 2%"
    watch.progress(120, 899)
    assert watch.line().startswith("120 of 899 flows, 13%, ")
    assert watch.line().endswith(" s left")


@pytest.fixture
def spoken(monkeypatch):
    """A semaphore that is released by each line, which come at once."""
    lines, real = Semaphore(0), VideoProgress.line

    def line(watch):
        lines.release()
        return real(watch)

    monkeypatch.setattr(VideoProgress, "line", line)
    monkeypatch.setattr(run_folder, "EVERY", 0.001)
    return lines


def test_without_a_terminal_lines_come_even_while_a_frame_lasts(spoken, capsys):
    with show_progress(3, 8, quiet=False) as watch:
        watch.progress(4, 8)
        while spoken.acquire(blocking=False):
            pass  # lines of before
        assert all(spoken.acquire(timeout=60) for _ in range(3))  # two are printed by now
    error = capsys.readouterr().err
    assert "\n4 of 8 flows, 50%, " in f"\n{error}"
    assert "━" not in error


@pytest.mark.usefixtures("spoken")
def test_a_quiet_run_has_nobody_to_speak():
    before = active_count()
    with show_progress(0, 8, quiet=True):
        assert active_count() == before


class Warns(KnownMotion):
    """A network in whose libraries somebody warns."""

    def match(self, before, after):
        warnings.warn("from a library", UserWarning, stacklevel=1)
        return super().match(before, after)


@pytest.mark.parametrize("command", ["video {} -o {}/s.npy", "interpolate {} -o {}/s --factor 2"])
def test_warnings_of_libraries_do_not_reach_users(capfd, tmp_path, monkeypatch, command):
    """Neither those of Python nor what FFmpeg writes by itself: one frame is damaged."""
    clip = write_video(tmp_path / "clip.avi", FRAMES, codec="mjpeg", pix_fmt="yuvj420p")
    data = bytearray(clip.read_bytes())
    starts = [i for i in range(len(data)) if data.startswith(b"\xff\xd8\xff", i)]
    data[starts[2] : starts[2] + 600] = bytes(600)
    clip.write_bytes(data)
    know_motion(monkeypatch, Warns)
    monkeypatch.setattr("sys.warnoptions", [])
    words = command.format(clip, tmp_path).split()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as ended:
            main([*words, "--on-error", "skip"])
    assert not ended.value.code
    assert not heard
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("skipped frame 2 (frame_000002): cannot be decoded")


def test_a_camera_that_is_not_there_is_one_line(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = LOGGING.getLogLevel()
    with pytest.raises(SystemExit):
        main(["video", "camera:99", "-o", "s.npy"])
    assert capfd.readouterr().err.splitlines() == ["error: OpenCV cannot open camera 99"]
    assert LOGGING.getLogLevel() == before
    assert not list(tmp_path.iterdir())
