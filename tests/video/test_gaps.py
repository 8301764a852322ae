"""A damaged video is not shortened without a word: what is lost keeps its place, and no flow."""

import json
from functools import partial

import av
import fake_trees
import numpy as np
import pytest
from clips import KnownMotion, know_motion, read_rows, read_video, write_images, write_video

from dicl_flow.errors import InputError
from dicl_flow.video import Moment, Selection, open_source
from dicl_flow.video.frames import capture, video_from

COUNT = 36  # three groups of ffv1, which are found again after a hole
FRAMES, _ = fake_trees.moving_frames(COUNT, (64, 96))


def movie(path, pts=range(COUNT)):
    """Every frame is a key frame; an .mp4 has its index in front."""
    codec = ("ffv1", "bgr0") if path.suffix == ".mkv" else ("mjpeg", "yuvj420p")
    options = {"movflags": "faststart"} if path.suffix == ".mp4" else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec[0], rate=10)
        stream.height, stream.width, stream.pix_fmt = 64, 96, codec[1]
        for frame, number in zip(FRAMES, pts, strict=True):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def truncated(path):
    data = movie(path).read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    return path


def holed(path):
    """Bytes of the middle are zero."""
    data = bytearray(movie(path).read_bytes())
    start, end = len(data) * 4 // 10, len(data) // 2
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    return path


def lost(source):
    """The numbers of frames that cannot be read, and how many frames there are."""
    numbers, shots = [], list(source.shots())
    assert [shot.name for shot in shots] == [f"frame_{n:06d}" for n in range(len(shots))]
    for number, shot in enumerate(shots):
        try:
            shot.read()
        except InputError:
            numbers.append(number)
    return numbers, len(shots)


@pytest.fixture
def video(run, monkeypatch):
    know_motion(monkeypatch, partial(KnownMotion))
    return lambda *arguments: run("video", *arguments, "--device", "cpu")


READERS = {"pyav": lambda p: open_source(str(p)), "opencv": lambda p: capture(str(p), live=False)}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("suffix", [".mkv", ".mp4", ".avi"])
def test_both_readers_find_what_a_truncated_file_lacks(tmp_path, suffix, read):
    whole = read(movie(tmp_path / f"whole{suffix}"))
    assert lost(whole) == ([], COUNT)
    numbers, count = lost(read(truncated(tmp_path / f"clip{suffix}")))
    assert count == COUNT
    assert numbers == list(range(numbers[0], COUNT))
    assert 8 < numbers[0] < 26


@pytest.mark.parametrize("suffix", [".mkv", ".mp4"])
def test_a_hole_leaves_later_frames_in_their_places(tmp_path, suffix):
    source = open_source(str(holed(tmp_path / f"clip{suffix}")))
    numbers, count = lost(source)
    assert count == source.count == COUNT
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert 8 < numbers[0] < numbers[-1] < 26
    for number, shot in enumerate(source.shots()):
        if not numbers[0] - 1 <= number <= numbers[-1] + 1:  # these may be lost in part
            assert shot.time == pytest.approx(number / 10)
            assert np.abs(shot.read().astype(int) - FRAMES[number]).mean() < 20  # lossy
    later = video_from(tmp_path / f"clip{suffix}", 2.8)  # starts at a frame after the hole
    first = next(shot for shot in later.shots() if shot.time >= 2.8)
    np.testing.assert_array_equal(first.read(), list(source.shots())[28].read())
    assert first.name == "frame_000028"


@pytest.mark.parametrize("make", [truncated, holed])
def test_a_shortfall_is_an_error_that_says_what_is_missing(video, tmp_path, make):
    clip = make(tmp_path / "clip.mkv")
    code, _, error = video(clip, "-o", tmp_path / "flows.npy")
    assert code == 2
    assert "): lost: " in error
    assert "--on-error skip" in error
    assert not (tmp_path / "flows.npy").exists()
    if make is truncated:
        assert "but the file should last until 3.60 s" in error


def test_a_gap_is_a_gap_in_table_and_array_unless_flow_may_span_it(video, tmp_path):
    clip = holed(tmp_path / "clip.mkv")
    (first, *_, last), _ = lost(open_source(str(clip)))
    for option, spanning in ((("--on-error", "skip"), 0), (("--across-gaps",), 1)):
        stack, table = tmp_path / f"{spanning}.npy", tmp_path / f"{spanning}.csv"
        outputs = ("-o", stack, "-o", tmp_path / f"{spanning}", "--stats", table)
        code, out, error = video(clip, *outputs, *option, "--json")
        assert code == 0
        report = json.loads(out)
        missing = list(range(first - 1 + spanning, last + 1))
        assert (report["lost_frames"], report["missing_flows"]) == (last - first + 1, len(missing))
        assert report["flows"] == COUNT - 1 - len(missing)
        assert error.count("skipped frames") == 1
        assert f"skipped frames {first} to {last}: lost: the file has no frame" in error
        array, rows = np.load(stack), read_rows(table)
        assert np.flatnonzero(np.isnan(array).all((1, 2, 3))).tolist() == missing
        assert [int(row["frame"]) for row in rows] == list(range(COUNT - 1))
        assert [n for n, row in enumerate(rows) if row["problem"]] == missing
        names = {path.name for path in (tmp_path / f"{spanning}").iterdir()}
        kept = set(range(COUNT - 1)) - set(missing)
        assert names == {f"frame_{number:06d}.flo" for number in kept}
        if spanning:  # the time from frame to frame counts
            row, seconds = rows[first - 1], (last - first + 2) / 10
            length, speed = float(row["mean_length"]), float(row["mean_speed_px_per_s"])
            assert speed == pytest.approx(length / seconds, rel=1e-3)


def test_broken_images_may_be_spanned_too(video, tmp_path):
    frames = write_images(tmp_path / "frames", FRAMES[:6])
    for number in (0, 2, 3, 5):
        (frames / f"shot_{number}.png").write_bytes(b"not an image")
    code, _, error = video(frames, "-o", tmp_path / "s.npy", "--across-gaps")
    assert code == 0
    assert [n for n in range(6) if f"skipped frame {n} " in error] == [0, 2, 3, 5]
    known = np.isfinite(np.load(tmp_path / "s.npy")).all((1, 2, 3))
    assert known.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("output", ["flow.npy", "flow.mkv", "flows"])
def test_a_clip_without_a_usable_pair_is_an_error_and_leaves_nothing(video, tmp_path, output):
    folder = write_images(tmp_path / "frames", FRAMES[:4])
    for file in sorted(folder.iterdir())[::2]:
        file.write_bytes(b"broken")
    code, out, errors = video(folder, "-o", tmp_path / output, "--on-error", "skip")
    assert (code, out) == (2, "")
    assert "none of the 3 pairs of frames can be used, because 2 of the frames are" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["frames"]


def test_a_variable_rate_has_no_gaps(tmp_path):
    pts = np.cumsum([0, *([1, 1, 5, 1, 3] * 8)][:COUNT]).tolist()
    for suffix in (".mp4", ".gif"):
        clip = tmp_path / f"clip{suffix}"
        if suffix == ".mp4":
            movie(clip, pts)
        else:
            write_video(clip, FRAMES, codec="gif", pix_fmt="rgb8")
        assert lost(open_source(str(clip))) == ([], COUNT)


@pytest.mark.parametrize("steps", [[1, 2], [1, 1, 1, 1, 1, 9], [1, 1, 1, 2]])
def test_a_matroska_file_that_is_whole_may_show_frames_longer(tmp_path, steps):
    pts = np.cumsum((steps * COUNT)[:COUNT]).tolist()
    source = open_source(str(movie(tmp_path / "clip.mkv", pts)))
    assert lost(source) == ([], COUNT)
    times = [shot.time for shot in source.shots()]
    np.testing.assert_allclose(times, np.array(pts) / 10, atol=2e-3)


def test_a_variable_rate_is_said_and_its_speeds_are_right(video, tmp_path):
    clip = movie(tmp_path / "clip.mkv", np.cumsum([1, 1, 1, 1, 1, 9] * 6).tolist())
    table = tmp_path / "s.csv"
    code, out, _ = video(clip, "-o", tmp_path / "s.npy", "--stats", table, "--json")
    report = json.loads(out)
    assert (code, report["flows"], report["lost_frames"]) == (0, COUNT - 1, 0)
    assert report["uneven"].startswith("6 frames are shown for longer than 1/10 s")
    ratios = [float(r["mean_length"]) / float(r["mean_speed_px_per_s"]) for r in read_rows(table)]
    assert ratios[3:6] == pytest.approx([0.1, 0.9, 0.1], rel=0.02)


def test_sound_between_the_frames_is_no_hole(tmp_path):
    clip = tmp_path / "sound.mkv"
    pts = np.cumsum([1, 1, 1, 1, 1, 9] * 6).tolist()
    with av.open(str(clip), "w") as container:
        stream, sound = container.add_stream("ffv1", rate=10), container.add_stream("pcm_s16le")
        stream.height, stream.width, stream.pix_fmt = 64, 96, "bgr0"
        for number, (frame, time) in enumerate(zip(FRAMES, pts, strict=True)):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts = time
            container.mux(stream.encode(picture))
            noise = av.AudioFrame.from_ndarray(np.full((1, 9600), number, np.int16), layout="mono")
            noise.sample_rate, noise.pts = 48000, 9600 * number
            container.mux(sound.encode(noise))
        container.mux(stream.encode())
    assert lost(open_source(str(clip))) == ([], COUNT)


def test_frames_after_the_end_of_the_selection_may_be_lost(tmp_path):
    source = open_source(str(truncated(tmp_path / "clip.mkv")))
    assert len(list(Selection(end=Moment(8, in_seconds=False)).frames(source))) == 8


def test_a_movie_holds_the_picture_over_a_gap(video, tmp_path):
    clip = holed(tmp_path / "clip.mkv")
    (first, *_, last), _ = lost(open_source(str(clip)))
    assert video(clip, "-o", tmp_path / "out.mkv", "--on-error", "skip")[0] == 0
    times = [time for _, time in read_video(tmp_path / "out.mkv")]
    kept = [n for n in range(COUNT - 1) if not first - 1 <= n <= last]
    np.testing.assert_allclose(times, np.array(kept) / 10, atol=1e-3)
