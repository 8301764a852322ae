"""Segments encoded by several threads make the same video."""

from fractions import Fraction
from pathlib import Path
from threading import Event, Thread, active_count
from time import sleep

import av
import fake_trees
import numpy as np
import pytest
from clips import read_video

from dicl_flow.errors import InputError
from dicl_flow.video import encoding, find_coding
from dicl_flow.video.coding import CODINGS
from dicl_flow.video.encoding import Segment, SideBySide, join
from dicl_flow.video.movies import Movie

PICTURE = np.zeros((4, 6, 3), np.uint8)
FULL = Path("/dev/full")
slow = pytest.mark.slow


class Recorder:
    """An encoder that waits for permission, and notes what it gets."""

    def __init__(self, path, may_begin):
        self.path, self.may_begin, self.numbers = path, may_begin, []
        path.write_bytes(b"open")

    def __call__(self, picture, number):
        assert self.may_begin.wait(60)
        self.numbers.append(number)

    def close(self):
        self.path.write_text(f"{self.numbers}")


@pytest.fixture
def permission():
    event = Event()
    yield event
    event.set()


def fill(segments, folder, count, pictures=2):
    """Begin and end segments named by their numbers."""
    ends = []
    for name in range(count):
        segments.begin(folder / f"open_{name}", folder / f"{name}")
        for number in range(pictures):
            segments.add(PICTURE, number)
        ends.append(segments.end())
    return ends


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_segments_are_encoded_at_once_and_named_when_complete(tmp_path, permission):
    segments = SideBySide(tmp_path / "x", lambda path: Recorder(path, permission), 3)
    ends = fill(segments, tmp_path, 3)
    while names(tmp_path) != ["open_0", "open_1", "open_2"]:
        sleep(0.001)
    assert not any(end.done() for end in ends)
    permission.set()
    segments.finish()
    assert names(tmp_path) == ["0", "1", "2"]
    assert (tmp_path / "1").read_text() == "[0, 1]"


@pytest.mark.parametrize("limit", ["segments", "bytes"])
def test_no_more_than_the_limit_waits(tmp_path, permission, monkeypatch, limit):
    if limit == "bytes":
        monkeypatch.setattr(encoding, "_WAITING", 3 * PICTURE.nbytes)
    at_once = 2 if limit == "segments" else 99
    segments = SideBySide(tmp_path / "x", lambda path: Recorder(path, permission), at_once)
    filling = Thread(target=fill, args=(segments, tmp_path, 5), daemon=True)
    filling.start()
    while len(segments._tasks) < 2:
        sleep(0.001)
    filling.join(0.1)
    assert filling.is_alive()
    assert len(segments._tasks) == 2
    permission.set()
    filling.join(60)
    segments.finish()
    assert names(tmp_path) == ["0", "1", "2", "3", "4"]


def test_the_error_of_an_encoder_is_raised_by_a_later_call(tmp_path):
    def full(path):
        raise OSError(28, "No space left on device")

    segments = SideBySide(tmp_path / "out.mp4", full, 1)
    with pytest.raises(OSError, match=r"cannot write .*out\.mp4: No space left"):
        fill(segments, tmp_path, 3)
    with pytest.raises(OSError, match="No space left"):
        segments.finish()


def test_stopped_segments_get_no_name_and_leave_no_thread(tmp_path, permission):
    threads = active_count()
    segments = SideBySide(tmp_path / "x", lambda path: Recorder(path, permission), 3)
    fill(segments, tmp_path, 2)
    segments.begin(tmp_path / "open_2", tmp_path / "2")  # still gets pictures
    permission.set()
    segments.stop()
    assert "2" not in names(tmp_path)
    assert active_count() <= threads  # one of an earlier test may end meanwhile


def write_movie(output, at_once):
    parts = output.with_suffix(".parts")
    parts.mkdir()
    coding = CODINGS[output.suffix]._replace(at_once=at_once)
    movie = Movie(output, parts, Fraction(10), coding)
    shades = np.linspace(0, 200, 12).astype(np.uint8)
    for number, shade in enumerate(shades):
        movie.add(np.full((32, 48, 3), shade), number)
        if number % 2:
            movie.commit()
    return movie.finish().read_bytes(), shades


def test_a_video_does_not_depend_on_how_many_are_encoded_at_once(tmp_path):
    one, shades = write_movie(tmp_path / "one.mp4", 1)
    many, _ = write_movie(tmp_path / "many.mp4", 6)
    assert one == many
    pictures = [picture.mean() for picture, _ in read_video(tmp_path / "many.mp4")]
    np.testing.assert_allclose(pictures, shades, atol=3)


def test_without_parts_there_is_no_video(tmp_path):
    movie = Movie(tmp_path / "out.mp4", tmp_path / "gone", Fraction(10))
    with pytest.raises(FileNotFoundError, match="gone is empty or gone"):
        movie.finish()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not FULL.exists(), reason="this system has no disk that is always full")
@pytest.mark.parametrize("suffix", CODINGS)
def test_a_full_disk_is_its_own_error_and_nothing_is_printed(tmp_path, capfd, suffix):
    """What is joined is larger than the buffer of the file."""
    part, noise = tmp_path / f"0{suffix}", np.random.default_rng(0)
    segment = Segment(part, Fraction(25), CODINGS[suffix])
    for number in range(30):
        segment(noise.integers(0, 256, (48, 64, 3), np.uint8), number)
    segment.close()
    with pytest.raises(OSError, match="No space left"):
        join([part], FULL, suffix, Fraction(25))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "encoder", "message"),
    [
        ("a.mp4", "h265_of_nobody", "no video encoder 'h265_of_nobody'"),
        ("a.mp4", "aac", "no video encoder 'aac'"),
        ("a.mp4", "libx264:crf", "'crf' is no KEY=VALUE"),
        ("a.mp4", "libx264:quality=3", "libx264 has no option quality"),
        ("a.mp4", "libx264:preset=best", "libx264 does not start"),
        ("a.mp4", "libx264:bf=2", "order of pictures"),
        ("a.mp4", "rawvideo", "rawvideo makes rawvideo, which .mp4 cannot hold"),
        ("a.webm", "libx264", "libx264 makes h264, which .webm cannot hold"),
        ("a.gif", "libx264", "a.gif is none of them"),
    ],
)
def test_encoders_that_cannot_be_used(tmp_path, name, encoder, message):
    with pytest.raises(InputError, match=message):
        find_coding(tmp_path / name, encoder)


def test_an_encoder_by_name_and_few_at_once_on_a_card(tmp_path, monkeypatch):
    coding = find_coding(tmp_path / "a.mp4", "libx264:crf=40:preset=ultrafast")
    assert coding[:4] == ("libx264", "yuv420p", {"crf": "40", "preset": "ultrafast"}, None)
    monkeypatch.setattr("dicl_flow.video.coding._is_hardware", lambda codec: True)
    assert find_coding(tmp_path / "a.mp4", "libx264").at_once == 2


@pytest.mark.parametrize(
    ("suffix", "times"), [(".mp4", 20), pytest.param(".mp4", 200, marks=slow), (".webm", 20)]
)
def test_what_memory_held_before_does_not_change_a_segment(tmp_path, suffix, times):
    """With x264's macroblock tree, AVX-512 makes 1 or 2 of 100 different."""
    generator = np.random.default_rng(0)
    frames, _ = fake_trees.moving_frames(8, (32, 96))
    path, found = tmp_path / f"0{suffix}", set()
    for _ in range(times):
        sizes = generator.integers(100, 60_000, 200)
        blocks = [np.full(size, generator.integers(256), np.uint8) for size in sizes]
        del blocks[::2]  # the encoder gets memory that was used
        segment = Segment(path, Fraction(25), CODINGS[suffix])
        for number, frame in enumerate(frames):
            segment(frame, number)
        segment.close()
        with av.open(str(path)) as video:  # the file of a .webm has a random number, too
            found.add(b"".join(map(bytes, video.demux())))
    assert len(found) == 1
