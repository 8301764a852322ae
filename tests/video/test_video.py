"""A video becomes the flow of its pairs, and a run that is killed is resumed."""

import json
import os
import re
import signal
import sys
import weakref
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import av
import cv2
import fake_trees
import numpy as np
import pytest
import torch
from av.video.stream import VideoStream
from children import SUPPORT, run_forked_child
from clips import connect_camera, read_rows, read_video, write_images, write_video
from conftest import SMALL
from video_child import PIECE

import dicl_flow
from dicl_flow.cli.clips import VideoProgress
from dicl_flow.cli.video import Video
from dicl_flow.errors import InputError
from dicl_flow.files import atomic
from dicl_flow.models import build
from dicl_flow.pictures.visualize import flow_to_rgb
from dicl_flow.video import (
    Behind,
    Checkpoint,
    Moment,
    PictureVideo,
    Selection,
    Source,
    State,
    ahead,
    open_source,
)
from dicl_flow.video import run as run_video
from dicl_flow.video.flows import begun_early
from dicl_flow.video.frames import Shot
from dicl_flow.video.writers import FolderWriter, flow_colors
from dicl_flow.weights import Weights, encode_weights

pytestmark = pytest.mark.heavy

CHILD, SHORT_PIECES = SUPPORT / "signal_child.py", SUPPORT / "video_child.py"
SIZE = (64, 96)
FRAMES, _ = fake_trees.moving_frames(8, SIZE)


@pytest.fixture
def clip(tmp_path):
    return write_video(tmp_path / "clip.mkv", FRAMES)


@pytest.fixture
def usual(tiny_weights):
    """The options of the tiny network."""
    return "-w", tiny_weights, "--device", "cpu", "--precision", "fp32"


@pytest.fixture
def video(run, usual):
    """Run the command with the tiny network."""
    return lambda *arguments: run("video", *arguments, *usual)


@pytest.fixture(scope="module")
def pairs(tiny_weights):
    """The flow of each pair of `FRAMES`, each for itself."""
    estimator = dicl_flow.load(tiny_weights, "cpu", "fp32")
    return [estimator(*pair).flow for pair in pairwise(FRAMES)]


def test_it_says_at_which_size_frames_are_computed_and_takes_full_size(run, tmp_path):
    torch.manual_seed(0)
    config = replace(SMALL, padding="resize", max_pixels=32 * 48)
    weights, folder = tmp_path / "w.safetensors", write_images(tmp_path / "shots", FRAMES[:2])
    weights.write_bytes(encode_weights(Weights(config, build(config).state_dict())))
    arguments = ("video", folder, "-w", weights, "--device", "cpu", "--precision", "fp32", "--json")
    for option, computed, size in (
        ([], "scaled down to 48x32, 0.50 of the size", "48x32"),
        (["--full-size"], "whole, seen as 48x32, then as 96x64", "96x64"),
    ):
        output = tmp_path / f"{size}.npy"
        summary = json.loads(run(*arguments, "-o", output, *option)[1])
        assert (summary["computed"], summary["computed_size"]) == (computed, size)
    assert not np.allclose(np.load(tmp_path / "48x32.npy"), np.load(tmp_path / "96x64.npy"))


def test_a_video_becomes_files_and_an_array_of_the_flow_of_its_pairs(video, clip, tmp_path, pairs):
    code, out, _ = video(clip, "-o", tmp_path / "flows", "-o", tmp_path / "stack.npy")
    assert code == 0
    assert re.search(r"^flows +7$", out, re.MULTILINE)
    stack = np.load(tmp_path / "stack.npy", mmap_mode="r")
    assert stack.dtype == np.float32
    np.testing.assert_allclose(stack, pairs, rtol=1e-4, atol=1e-4)
    files = sorted((tmp_path / "flows").iterdir())
    assert [file.name for file in files] == [f"frame_{number:06d}.flo" for number in range(7)]
    for file, flow in zip(files, stack, strict=True):
        np.testing.assert_array_equal(dicl_flow.read_flow(file), flow)
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--stride", 3], [(0, 3), (3, 6)]),
        (["--start", 2, "--end", 5], [(2, 3), (3, 4)]),
        (["--start", "0.25s", "--end", "0.55s"], [(3, 4), (4, 5)]),
        (["--start", 1, "--stride", 4], [(1, 5)]),
    ],
)
def test_frames_are_chosen_by_stride_number_and_time(
    video, clip, tmp_path, tiny_weights, options, numbers
):
    code, _, error = video(clip, "-o", tmp_path / "flows", "--format", "npz", *options)
    assert (code, error) == (0, "")
    files = {file.name for file in (tmp_path / "flows").iterdir()}
    assert files == {f"frame_{first:06d}.npz" for first, _ in numbers}
    estimator = dicl_flow.load(tiny_weights, "cpu", "fp32")
    for first, second in numbers:
        found = dicl_flow.read_flow(tmp_path / "flows" / f"frame_{first:06d}.npz")
        expected = estimator(FRAMES[first], FRAMES[second]).flow
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("how", ["{}", "{}/shot_*.png"])
def test_images_come_in_natural_order_and_lend_their_names(video, tmp_path, pairs, how):
    frames = write_images(tmp_path / "frames", [*FRAMES, *FRAMES[:4]])
    (frames / "notes.txt").write_text("no frame")
    code, _, _ = video(how.format(frames), "-o", tmp_path / "out", "--format", "npy")
    assert code == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {f"shot_{number}.npy" for number in range(11)}
    np.testing.assert_allclose(np.load(tmp_path / "out" / "shot_6.npy"), pairs[6], atol=1e-5)


def test_scale_resizes_the_frames(video, clip, tmp_path):
    video(clip, "-o", tmp_path / "half.npy", "--scale", 0.5)
    assert np.load(tmp_path / "half.npy").shape == (7, 32, 48, 2)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov", ".webm", ".gif"])
def test_a_video_shows_what_was_asked_for(video, clip, tmp_path, pairs, suffix):
    output = tmp_path / f"out{suffix}"
    options = ("--show", "frame,wheel", "--no-key", "--max", 9, "--fps", 5)
    code, _, _ = video(clip, "-o", output, *options)
    assert code == 0
    pictures, times = zip(*read_video(output), strict=True)
    np.testing.assert_allclose(times, np.arange(7) / 5, atol=1e-3)
    for number, picture in enumerate(pictures):
        assert picture.shape == (64, 192, 3)
        frame, wheel = picture[:, :96].astype(int), picture[:, 96:].astype(int)
        assert np.abs(frame - FRAMES[number]).mean() < 12  # lossy
        assert np.abs(wheel - flow_to_rgb(pairs[number], 9)).mean() < 12


def test_pictures_that_were_asked_for_are_explained(video, clip, tmp_path):
    """With --show, panels have captions and keys; without it the picture is as it was."""
    seen = {}
    for name, options in {
        "default": (),
        "key": ("--key",),
        "show": ("--show", "wheel"),
        "bare": ("--show", "wheel", "--no-key"),
    }.items():
        output = tmp_path / f"{name}.mkv"
        assert video(clip, "-o", output, "--max", 9, *options)[0] == 0
        seen[name] = read_video(output)[0][0].astype(int)
    np.testing.assert_array_equal(seen["default"], seen["bare"])
    np.testing.assert_array_equal(seen["key"], seen["show"])
    apart = np.abs(seen["show"] - seen["bare"]).sum(2)
    assert apart[:8, :12].mean() > 200  # the caption
    assert apart[-12:, -30:].mean() > 200  # the key
    assert apart[20:40, :40].mean() < 40
    code, _, error = video(clip, "-o", tmp_path / "flows", "--key")
    assert code == 2
    assert "--key is for a video" in error


def test_all_pictures_fit_on_a_sheet_of_even_sides(video, clip, tmp_path):
    names = "frame,wheel,overlay,arrows,difference"
    code, _, _ = video(clip, "-o", tmp_path / "out.mp4", "--show", names, "--scale", 0.35)
    assert code == 0
    (picture, _), *rest = read_video(tmp_path / "out.mp4")
    assert len(rest) == 6
    assert picture.shape == (44, 102, 3)  # two rows of 22, three columns of 34


def test_more_flows_than_a_segment_holds(video, clip, tmp_path, monkeypatch):
    monkeypatch.setattr(PictureVideo, "piece", 3)
    video(clip, "-o", tmp_path / "out.mp4")
    times = [time for _, time in read_video(tmp_path / "out.mp4")]
    np.testing.assert_allclose(times, np.arange(7) / 10, atol=1e-6)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.duration == pytest.approx(7e5)  # microseconds
        assert container.streams.video[0].average_rate == 10


def test_another_encoder_by_its_name(video, clip, tmp_path):
    assert video(clip, "-o", tmp_path / "out.mp4", "--encoder", "mpeg4:g=1")[0] == 0
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"
        assert all(packet.is_keyframe for packet in container.demux(video=0) if packet.size)
    code, _, error = video(clip, "-o", tmp_path / "flows", "--encoder", "mpeg4")
    assert code == 2
    assert "--encoder is for a video" in error


@pytest.mark.skipif(
    not hasattr(VideoStream, "set_display_rotation"), reason="this PyAV cannot write a rotation"
)
def test_a_phone_held_upright(tmp_path):
    upright = write_video(tmp_path / "phone.mp4", FRAMES, 10, "libx264", "yuv420p", rotation=90)
    shot = next(open_source(str(upright)).shots())
    expected = np.rot90(FRAMES[0], 1)
    assert shot.read().shape == expected.shape
    assert np.abs(shot.read().astype(int) - expected).mean() < 12


@pytest.mark.parametrize("maximum", [3.0, 10.0])
def test_colours_on_the_device_are_those_of_the_picture(maximum):
    generator = np.random.default_rng(0)
    flow = generator.normal(0, 4, (60, 80, 2)).astype(np.float32)
    flow[0, :4] = [[0, 0], [3, 0], [np.nan, 1], [1e10, 0]]
    expected = flow_to_rgb(flow, maximum)
    found = flow_colors(torch.from_numpy(flow).permute(2, 0, 1), maximum).numpy()
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert (found == expected).mean() > 0.999


def test_statistics_tell_motion_and_cuts(run, tmp_path):
    other, _ = fake_trees.moving_frames(2, SIZE, seed=5)
    clip = write_video(tmp_path / "cut.mkv", [*FRAMES[:3], *other])
    output = ("-o", tmp_path / "flows", "--stats", tmp_path / "s.csv")
    code, _, _ = run("video", clip, *output, "--device", "cpu")  # the packaged weights
    assert code == 0
    rows = read_rows(tmp_path / "s.csv")
    assert [row["frame"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["time"]) for row in rows] == [0, 0.1, 0.2, 0.3]
    assert [row["scene_cut"] for row in rows] == ["0", "0", "1", "0"]
    flow = dicl_flow.read_flow(tmp_path / "flows" / "frame_000001.flo")
    length = np.hypot(flow[..., 0], flow[..., 1])
    assert float(rows[1]["mean_length"]) == pytest.approx(length.mean(), rel=1e-4)
    assert float(rows[1]["moving_share"]) == pytest.approx((length > 0.5).mean(), rel=1e-4)
    x, y = flow.mean((0, 1))
    assert float(rows[1]["direction"]) == pytest.approx(np.degrees(np.arctan2(y, x)), rel=1e-3)


@pytest.fixture
def short_clip(tmp_path):
    """Two pairs: the packaged weights take seconds for each."""
    return write_video(tmp_path / "short.mkv", FRAMES[:3])


@pytest.fixture(scope="module")
def both_ways():
    """What the packaged weights say of each pair: they know where a frame hides the other."""
    estimator = dicl_flow.load(device="cpu", precision="fp32")
    results = [estimator(*pair, backward=True) for pair in pairwise(FRAMES[:3])]
    assert 0.05 < np.mean([result.occlusion for result in results]) < 0.95
    return results


@pytest.fixture
def packaged(run):
    """Run the command with the packaged weights."""
    return lambda *arguments: run("video", *arguments, "--device", "cpu", "--precision", "fp32")


@pytest.mark.xdist_group("both ways")
def test_backward_flow_and_masks_lie_next_to_the_flow(packaged, short_clip, tmp_path, both_ways):
    flows, stack, movie, table = (tmp_path / n for n in ("flows", "stack.npy", "out.mkv", "s.csv"))
    outputs = ("-o", flows, "-o", stack, "-o", movie, "--stats", table)
    code, _, _ = packaged(
        short_clip, *outputs, "--backward", "--occlusion", "--show", "occlusion", "--no-key"
    )
    assert code == 0
    assert len(list(flows.iterdir())) == 3 * 2
    array, pictures, rows = np.load(stack), read_video(movie), read_rows(table)
    assert array.shape == (2, 2, *SIZE, 2)
    for number, result in enumerate(both_ways):
        name = f"frame_{number:06d}"
        there, back = (dicl_flow.read_flow(flows / f"{name}{end}.flo") for end in ("", "_backward"))
        np.testing.assert_allclose(there, result.flow, atol=1e-3)
        np.testing.assert_allclose(back, result.backward.flow, atol=1e-3)
        np.testing.assert_array_equal(array[number], [there, back])
        mask = cv2.imread(str(flows / f"{name}_occlusion.png"), cv2.IMREAD_GRAYSCALE)
        assert set(np.unique(mask)) <= {0, 255}
        assert ((mask == 255) != result.occlusion).mean() < 1e-3  # rounding, at the bound
        assert ((pictures[number][0] > 127) == result.occlusion[..., None]).mean() > 0.97  # lossy
        assert float(rows[number]["occluded"]) == pytest.approx(result.occlusion.mean(), abs=1e-3)


@pytest.mark.xdist_group("both ways")
def test_flow_of_little_confidence_is_unknown(packaged, short_clip, tmp_path, both_ways):
    bound = round(float(np.median([result.confidence for result in both_ways])), 3)
    flows, stack, movie, table = (tmp_path / n for n in ("flows", "s.npy", "out.mkv", "s.csv"))
    outputs = ("-o", flows, "-o", stack, "-o", movie, "--stats", table)
    code, _, _ = packaged(short_clip, *outputs, "--backward", "--min-confidence", bound, "--max", 9)
    assert code == 0
    array = np.load(stack)
    pictures = [picture for picture, _ in read_video(movie)]
    for number, (result, row) in enumerate(zip(both_ways, read_rows(table), strict=True)):
        expected = result.masked(bound)
        for found, way in zip(array[number], (expected, expected.backward), strict=True):
            known = np.isfinite(found) & np.isfinite(way.flow)
            assert (known != np.isfinite(way.flow)).mean() < 1e-3  # rounding, at the bound
            assert (known != np.isfinite(found)).mean() < 1e-3
            np.testing.assert_allclose(found[known], way.flow[known], atol=1e-3)
        file = dicl_flow.read_flow(flows / f"frame_{number:06d}.flo")
        np.testing.assert_array_equal(file, array[number, 0])
        drawn = flow_to_rgb(expected.flow, 9)
        assert np.abs(pictures[number].astype(int) - drawn).mean() < 20  # black dots, lossy
        length = np.hypot(*np.moveaxis(file, 2, 0))
        known = np.isfinite(length)
        assert 0.1 < known.mean() < 0.95
        assert float(row["known"]) == pytest.approx(known.mean(), rel=1e-3)
        assert float(row["mean_length"]) == pytest.approx(length[known].mean(), rel=1e-3)
        moving = (length[known] > 0.5).mean()
        assert float(row["moving_share"]) == pytest.approx(moving, rel=1e-3)


def test_a_frame_without_any_sure_flow_keeps_its_row_and_its_picture(video, clip, tmp_path):
    movie, table = tmp_path / "out.mkv", tmp_path / "s.csv"
    options = ("--show", "wheel,overlay,arrows,difference", "--stats", table)
    assert video(clip, "-o", movie, *options, "--min-confidence", 1)[0] == 0
    assert len(read_video(movie)) == 7
    rows = read_rows(table)
    assert [(row["known"], row["mean_length"]) for row in rows] == [("0", "")] * 7
    assert video(clip, "-o", tmp_path / "whole", "--stats", tmp_path / "whole.csv")[0] == 0
    whole = read_rows(tmp_path / "whole.csv")
    assert [row["scene_cut"] for row in rows] == [row["scene_cut"] for row in whole]


def test_a_frame_with_the_name_of_a_way_back_is_refused(video, tmp_path):
    frames = tmp_path / "frames"
    for name, frame in zip(("a", "a_backward", "b"), FRAMES, strict=False):
        fake_trees.write_image(frames / f"{name}.png", frame)
    code, _, error = video(frames, "-o", tmp_path / "flows", "--backward")
    assert code == 2
    assert "frame a_backward" in error
    assert video(frames, "-o", tmp_path / "flows", "--restart")[0] == 0


@pytest.mark.parametrize(
    ("names", "given"),
    [(("f0.jpg", "f0.png", "f1.png"), ""), (("a/f0.png", "b/f0.png", "b/f1.png"), "/*/*.png")],
)
def test_frames_of_one_name_are_refused_in_a_folder_of_flows(video, tmp_path, names, given):
    frames = tmp_path / "frames"
    for name, frame in zip(names, FRAMES, strict=False):
        fake_trees.write_image(frames / name, frame)
    code, _, error = video(f"{frames}{given}", "-o", tmp_path / "flows")
    assert code == 2
    one, two = (frames / name for name in names[:2])
    assert f"the flows of {one} and {two} would be one file, f0.flo; select" in error
    assert list(tmp_path.iterdir()) == [frames]
    assert video(f"{frames}{given}", "-o", tmp_path / "flows", "--start", 1)[0] == 0
    assert video(f"{frames}{given}", "-o", tmp_path / "s.npy")[0] == 0  # knows no names


def broken_images(tmp_path):
    frames = write_images(tmp_path / "frames", FRAMES)
    (frames / "shot_3.png").write_bytes(b"not an image")
    return frames


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ([], [".flo"]),
        (["--backward", "--occlusion"], [".flo", "_backward.flo", "_occlusion.png"]),
    ],
)
def test_a_broken_frame_stops_the_run_and_keeps_what_was_done(video, tmp_path, options, ends):
    frames, flows = broken_images(tmp_path), tmp_path / "flows"
    code, _, error = video(frames, "-o", flows, *options)
    assert code == 2
    assert "frame 3 (shot_3)" in error
    assert "--on-error skip" in error
    kept = {flows / f"shot_{number}{end}" for number in (0, 1) for end in ends}
    assert set(flows.iterdir()) == kept
    times = {path: path.stat().st_mtime_ns for path in kept}
    for end in ends:
        (flows / f".shot_2{end}.x7").write_bytes(b"left by a kill")
    fake_trees.write_image(frames / "shot_3.png", FRAMES[3])
    assert video(frames, "-o", flows, *options)[0] == 0  # mended, it goes on
    assert {path: path.stat().st_mtime_ns for path in kept} == times
    names = {f"shot_{number}{end}" for number in range(7) for end in ends}
    assert {file.name for file in flows.iterdir()} == names


def test_a_broken_frame_is_skipped_by_choice(video, tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(PictureVideo, "piece", 3)  # the gap lies where segments meet
    outputs = [tmp_path / name for name in ("flows", "stack.npy", "out.mp4", "s.csv")]
    flows, stack, movie, table = outputs
    code, out, error = video(
        *(broken_images(tmp_path), "--on-error", "skip", "--stats", table),
        *("-o", flows, "-o", stack, "-o", movie),
    )
    assert code == 0
    assert re.search(r"^flows +5\nmissing flows +2$", out, re.MULTILINE)
    assert error.count("skipped frame 3 (shot_3)") == 1
    numbers = [0, 1, 4, 5, 6]
    assert {file.name for file in flows.iterdir()} == {f"shot_{n}.flo" for n in numbers}
    array = np.load(stack)
    np.testing.assert_allclose(array[numbers], np.array(pairs)[numbers], atol=1e-5)
    assert np.isnan(array[2:4]).all()
    times = [time for _, time in read_video(movie)]
    np.testing.assert_allclose(times, np.array(numbers) / 25, atol=1e-6)
    assert [bool(row["problem"]) for row in read_rows(table)] == [n in (2, 3) for n in range(7)]


def test_a_first_frame_that_is_broken(video, tmp_path, pairs):
    frames = write_images(tmp_path / "frames", FRAMES)
    (frames / "shot_0.png").write_bytes(b"not an image")
    code, _, error = video(frames, "-o", tmp_path / "s.npy", "--on-error", "skip")
    assert code == 0
    assert "skipped frame 0" in error
    array = np.load(tmp_path / "s.npy")
    assert np.isnan(array[0]).all()
    np.testing.assert_allclose(array[1:], pairs[1:], atol=1e-5)


def test_a_damaged_piece_of_a_video_is_a_broken_frame(video, tmp_path):
    """The container is whole; the data of one frame are not."""
    clip = write_video(tmp_path / "clip.avi", FRAMES, codec="mjpeg", pix_fmt="yuvj420p")
    data = bytearray(clip.read_bytes())
    starts = [i for i in range(len(data)) if data.startswith(b"\xff\xd8\xff", i)]
    data[starts[4] : starts[4] + 600] = bytes(600)
    clip.write_bytes(data)
    code, out, error = video(clip, "-o", tmp_path / "flows", "--on-error", "skip")
    assert code == 0
    assert "skipped frame 4 (frame_000004): cannot be decoded" in error
    assert re.search(r"^missing flows +2$", out, re.MULTILINE)


def test_frames_of_different_sizes(video, tmp_path):
    frames = write_images(tmp_path / "frames", [*FRAMES[:2], FRAMES[2][:, :80], *FRAMES[3:]])
    code, _, error = video(frames, "-o", tmp_path / "flows")
    assert code == 2
    assert "is 80x64, but the frames before were 96x64" in error


def sound(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def playlist(path):
    path.write_text("ffconcat version 1.0\nfile secret.mp4\n")
    return path


def empty(path):
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (lambda p: p / "no.mp4", [], "no video, folder or camera"),
        (lambda p: p / "no*.png", [], "no images in"),
        (lambda p: sound(p / "sound.wav"), [], "has no video stream"),
        (lambda p: playlist(p / "list.mp4"), [], "is a list of other files, not a video"),
        (lambda p: empty(p / "empty"), [], "no images in"),
        (lambda p: Path(__file__), [], "cannot be decoded as a video"),
        (lambda p: "camera:99", [], "cannot open camera 99"),
        (lambda p: "camera:front", [], "a camera must be camera:0"),
        (lambda p: write_video(p / "one.mkv", FRAMES[:1]), [], "at least two frames"),
        (lambda p: write_images(p / "f", FRAMES), ["--start", "1s"], "images have no time"),
        (None, ["--start", "soon"], "--start must be a frame number"),
        (None, ["--end", "-3"], "--end must be a frame number"),
        (
            None,
            ["--start", "100"],
            "start (frame 100) is past the end: the input has 8 frames (0.80 s)",
        ),
        (None, ["--start", "2s"], "start (2 s) is past the end: the input has 8 frames (0.80 s)"),
        (None, ["--start", "3", "--end", "3"], "the end (frame 3) must be after the start"),
        (lambda p: write_images(p / "f", FRAMES[:3]), ["--start", 3], "the input has 3 frames"),
        (None, ["--cuts", "blnk"], "did you mean 'blank'"),
        (None, ["-o", "x.gif", "--fps", "60"], "a GIF shows at most 50 frames per second"),
        (None, ["b.png", "c.png"], "got 3 inputs, one is taken; quote the pattern: '"),
        (None, ["--stride", "0"], "--stride must be positive"),
        (None, ["--scale", "0"], "--scale must be positive"),
        (None, ["--max", "0"], "--max must be positive"),
        (None, ["--on-error", "shout"], "unknown --on-error 'shout'"),
        (None, ["--show", "wheel"], "--show is for a video"),
        (None, ["--format", "avi"], "unknown --format 'avi'"),
        (None, ["--stats", "s.txt"], "must be a .csv file"),
        (None, ["-o", "more"], "one output of a kind"),
        (lambda p: write_images(p / "flows", FRAMES), [], "flows is the input as well"),
        (lambda p: write_images(p / "flows", FRAMES) / "*.png", [], "flows is the input as well"),
        (None, ["-o", "x.avi"], "a video must end in .mp4, .mov, .mkv, .webm, .gif"),
        (None, ["-o", "x.mp4", "--show", "whel"], "did you mean 'wheel'"),
        (None, ["-o", "x.mp4", "--show", "wheel,wheel"], "twice"),
        (None, ["-o", "x.mp4", "--format", "flo", "-o", "/dev/null/x.npy"], "is not a folder"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    video, clip, tmp_path, monkeypatch, source, options, message
):
    monkeypatch.chdir(tmp_path)
    given = clip if source is None else source(tmp_path)
    before = set(tmp_path.iterdir())
    code, _, error = video(given, "-o", "flows", *options)
    assert code == 2
    assert message in error
    assert "Traceback" not in error
    assert set(tmp_path.iterdir()) == before  # nothing half-written


@pytest.mark.parametrize(
    ("output", "option", "message"),
    [
        ("x.mp4", "--backward", "--backward is for a folder or array, and no output is one"),
        ("x.npy", "--occlusion", "--occlusion is for a folder, and no output is one"),
        ("x.mp4", "--occlusion", "a video has --show occlusion"),
    ],
)
def test_options_that_fit_no_output(video, clip, tmp_path, output, option, message):
    code, _, error = video(clip, "-o", tmp_path / output, option)
    assert code == 2
    assert message in error
    assert list(tmp_path.iterdir()) == [clip]


def test_without_pyav_the_extra_is_named(video, tmp_path, monkeypatch):
    frames = write_images(tmp_path / "frames", FRAMES)
    monkeypatch.setitem(sys.modules, "av", None)
    assert "dicl-flow[video]" in video(frames, "-o", tmp_path / "out.mp4")[2]
    assert video(frames, "-o", tmp_path / "flows")[0] == 0  # images do without


class VideoWithMore(Video):
    """The command with an option that nobody has thought of yet."""

    sharpness: float = 1.0


def test_an_option_is_recorded_unless_it_may_change(tmp_path):
    given = {**dict.fromkeys(VideoWithMore.option_types()), "sharpness": 2.0}
    source = SimpleNamespace(stamp="clip")
    estimator = SimpleNamespace(device="cpu", backend="plain", precision="fp32")
    record = VideoWithMore(**given).record(source, estimator, [tmp_path / "a.npy"])
    assert record["sharpness"] == 2.0
    of_files = {"inputs", "stats", "mask"}  # recorded as input, output and file
    may_change = {"on_error", "restart", "max_size", "memory_limit", "quiet", "as_json"}
    may_change |= {"fenced", "view", "port"}
    assert given.keys() - record.keys() == of_files | may_change


EACH_FLOW, NEVER = "dicl_flow.cli.clips:VideoProgress.__call__", 0


@pytest.mark.usefixtures("one_thread")
def test_killed_and_started_again_the_frames_are_the_same(video, usual, tmp_path, monkeypatch):
    monkeypatch.setattr(PictureVideo, "piece", PIECE)
    frames = fake_trees.moving_frames(20, (32, 48))[0][:15]
    clip = write_video(tmp_path / "long.mkv", frames)
    names = ("out.mp4", "stack.npy")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()

    def arguments(folder):
        outputs = [part for name in names for part in ("-o", folder / name)]
        more = ("--show", "wheel,occlusion", "--backward", "--min-confidence", 0.005)
        return clip, *outputs, *more, "--stats", folder / "s.csv"

    assert video(*arguments(whole))[0] == 0
    command = ("video", *arguments(killed), *usual)
    child = run_forked_child(SHORT_PIECES, "SIGKILL", 11, EACH_FLOW, *command)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert not (killed / "out.mp4").exists()
    assert (killed / "out.mp4.parts" / ".lock").exists()  # the file, which nobody holds
    state = json.loads((killed / "out.mp4.parts" / "state.json").read_text())
    assert state["done"] == PIECE  # the second run does not start over
    assert video(*arguments(killed))[0] == 0
    assert 0.2 < np.isfinite(np.load(whole / "stack.npy")).mean() < 0.8
    assert (whole / "s.csv").read_text() == (killed / "s.csv").read_text()
    assert (whole / "stack.npy").read_bytes() == (killed / "stack.npy").read_bytes()
    one, two = read_video(whole / "out.mp4"), read_video(killed / "out.mp4")
    assert len(one) == len(two) == 14
    for (picture1, time1), (picture2, time2) in zip(one, two, strict=True):
        assert time1 == time2
        np.testing.assert_array_equal(picture1, picture2)


def test_ctrl_c_keeps_what_is_done_and_a_changed_setting_is_refused(video, usual, tmp_path):
    clip = write_video(tmp_path / "clip.mkv", FRAMES)
    flows = tmp_path / "flows"
    child = run_forked_child(CHILD, "SIGINT", 4, EACH_FLOW, "video", clip, "-o", flows, *usual)
    assert child.returncode == 128 + signal.SIGINT
    assert "stopped; 4 flows done; the same command resumes it" in child.stderr
    code, _, error = video(clip, "-o", flows, "--stride", 2)
    assert code == 2
    assert "unfinished run with other settings: stride was 1 and is 2 now; use" in error
    code, _, error = video(clip, "-o", flows, "--backward")
    assert code == 2
    assert "backward was off and is on now" in error
    before = (flows / "frame_000003.flo").stat().st_mtime_ns
    assert video(clip, "-o", flows, "--end", 6, "--restart")[0] == 0
    assert (flows / "frame_000003.flo").stat().st_mtime_ns > before
    assert not (tmp_path / "flows.parts").exists()


def add_frame(frames):
    fake_trees.write_image(frames / "shot_0_b.png", FRAMES[0])


def replace_frame(frames):
    fake_trees.write_image(frames / "shot_1.png", FRAMES[5])
    os.utime(frames / "shot_1.png", ns=(0, 0))  # whatever the clock says


def rename_frame(frames):
    (frames / "shot_7.png").rename(frames / "shot_8.png")


@pytest.mark.parametrize(
    ("how", "change", "words"),
    [
        ("{}", add_frame, "1 added"),
        ("{}/*.png", replace_frame, "1 changed"),
        ("{}", lambda frames: (frames / "shot_1.png").unlink(), "1 gone"),
        ("{}/*.png", rename_frame, "1 added, 1 gone"),
    ],
)
def test_a_run_does_not_go_on_with_other_frames(video, tmp_path, how, change, words):
    frames, flows = broken_images(tmp_path), tmp_path / "flows"
    given = how.format(frames)
    assert video(given, "-o", flows)[0] == 2  # two flows are done
    fake_trees.write_image(frames / "shot_3.png", FRAMES[3])
    change(frames)
    code, _, error = video(given, "-o", flows)
    assert code == 2
    assert f"holds an unfinished run of other frames ({words} since); restore them" in error
    assert video(given, "-o", flows, "--restart")[0] == 0


def test_only_frames_that_were_chosen_matter(tmp_path):
    frames = write_images(tmp_path / "frames", FRAMES)
    selection = Selection(Moment(1, False), Moment(6, False), stride=2)

    def begun():
        files = selection.chosen(open_source(str(frames)).files)
        assert [file.stem for file in files] == ["shot_1", "shot_3", "shot_5"]
        return Checkpoint(tmp_path / "v.npy", {}, frames=files)

    with begun() as checkpoint:
        checkpoint.save(State(1))
    others = {2: FRAMES[0], 5: FRAMES[0]}  # between two, and one without a flow yet
    for number, frame in others.items():
        fake_trees.write_image(frames / f"shot_{number}.png", frame)
        os.utime(frames / f"shot_{number}.png", ns=(0, 0))
    with begun() as checkpoint:
        assert checkpoint.done == 1
        checkpoint.save(State(2))
    with begun() as checkpoint:
        assert checkpoint.done == 2  # what was mended is what counts from now on
    os.utime(frames / "shot_3.png", ns=(0, 0))
    with pytest.raises(InputError, match="1 changed since"):
        begun()


@pytest.mark.usefixtures("one_thread")
def test_two_runs_do_not_write_to_one_output(video, usual, clip, tmp_path, pairs, monkeypatch):
    """While the first run works, another of the same output is refused and harms nothing."""
    output, others, real = tmp_path / "v.npy", [], VideoProgress.__call__

    def watch(self, flow):
        if not others:
            command = ("video", clip, "-o", output, "--restart", *usual)
            others.append(run_forked_child(CHILD, "SIGKILL", NEVER, EACH_FLOW, *command))
        return real(self, flow)

    monkeypatch.setattr(VideoProgress, "__call__", watch)
    assert video(clip, "-o", output)[0] == 0
    assert others[0].returncode == 2
    message = f"error: another run is writing to {output}.parts; wait until it ends"
    assert others[0].stderr.startswith(message)
    assert others[0].stderr.count("\n") == 1
    np.testing.assert_allclose(np.load(output), pairs, rtol=1e-4, atol=1e-4)
    assert set(tmp_path.iterdir()) == {clip, output, tmp_path / ".v.npy.finished.json"}


def test_what_changed_is_said_in_words(tmp_path):
    before = {"input": {"path": "a.mp4", "bytes": 1}, "weights": {"path": "w", "bytes": 1}}
    before |= {"show": None, "backward": False, "fps": 2.0, "output": ["x.npy"], "stride": 1}
    now = {"input": {"path": "b.mp4", "bytes": 1}, "weights": {"path": "w", "bytes": 2}}
    now |= {"show": "frame", "backward": True, "fps": 2.5, "output": ["x.npy", "y.csv"]}
    with Checkpoint(tmp_path / "x.npy", before) as checkpoint:
        checkpoint.save(State(1))
    with pytest.raises(InputError) as refused:
        Checkpoint(tmp_path / "x.npy", now | {"stride": 1})
    words = (
        "other settings: input was a.mp4 and is b.mp4 now, weights (w) changed since, show was not "
        "given and is frame now, backward was off and is on now, fps was 2 and is 2.5 now, output "
        "was x.npy and is x.npy, y.csv now; use the same settings, or start again"
    )
    assert words in str(refused.value)


def test_a_lock_is_let_go_by_every_end_of_a_run(tmp_path):
    output, settings = tmp_path / "v.npy", {"stride": 1}
    first = Checkpoint(output, settings)
    with pytest.raises(InputError, match="another run is writing to"):
        Checkpoint(output, settings, restart=True)
    with first:
        first.save(State(3))
    with pytest.raises(InputError, match="stride was 1 and is 2 now"):
        Checkpoint(output, {"stride": 2})
    with Checkpoint(output, settings) as second:
        assert second.done == 3
        second.remove()
    assert not list(tmp_path.iterdir())
    with Checkpoint(output, settings):
        """Nothing is begun, nothing is left."""
    assert not list(tmp_path.iterdir())


def test_a_lock_on_a_removed_file_is_none(tmp_path, monkeypatch):
    """Between opening and locking, the run before may end and remove its folder."""
    first, second, third = (atomic.FolderLock(tmp_path / "parts") for _ in range(3))
    assert first.acquire()
    real = atomic.lock

    def late(file):
        first.remove()
        return real(file)

    monkeypatch.setattr(atomic, "lock", late)
    assert second.acquire()
    assert not third.acquire()
    second.release()
    assert third.acquire()
    third.remove()


def test_a_folder_of_parts_that_is_lost_is_no_empty_video(video, clip, tmp_path, monkeypatch):
    """Saving the progress makes the folder again, without the parts of the video."""
    output, save = tmp_path / "out.mp4", Checkpoint.save

    def lose(checkpoint, state):
        if state.done == 7:
            checkpoint.folder.rename(tmp_path / "elsewhere")
        save(checkpoint, state)

    monkeypatch.setattr(Checkpoint, "save", lose)
    code, _, error = video(clip, "-o", output)
    assert (code, f"cannot write to {output}.parts: the folder is gone" in error) == (2, True)
    assert not output.exists()
    monkeypatch.undo()
    assert video(clip, "-o", output)[0] == 0
    assert len(read_video(output)) == 7


def test_a_camera_is_recorded_until_it_is_stopped(video, tmp_path, monkeypatch):
    connect_camera(monkeypatch, FRAMES)
    assert video("camera:0", "-o", tmp_path / "s.npy", "--end", 5)[0] == 0
    assert np.load(tmp_path / "s.npy").shape == (4, *SIZE, 2)


def test_few_frames_are_in_memory_at_a_time(tmp_path):
    class Still:
        """Stands in for a sequence: no motion, at once."""

        def at_once(self, size):
            return 1

        def prepare(self, image):
            return image

        def match(self, before, after):
            return torch.zeros(1, 3, *after.shape[:2])

    seen, most = [], 0

    def read():
        image = np.zeros((16, 16, 3), np.uint8)
        seen.append(weakref.ref(image))
        return image

    def watch(flow):
        nonlocal most
        most = max(most, sum(image() is not None for image in seen))
        return True

    source = Source(lambda: (Shot("frame", None, read) for _ in range(200)), {})
    output = tmp_path / "still.mp4"
    checkpoint = Checkpoint(output, {})
    movie = PictureVideo(output, checkpoint.folder, Fraction(25), ["frame"])
    run_video(source, Selection(), Still(), [movie], checkpoint, watch)
    assert len(seen) == 200
    assert most <= 12  # two queues of two, and what each thread has in its hands


def test_a_thread_works_ahead_but_not_too_far_and_ends_with_its_reader():
    made = []
    reached = {4: Event(), 5: Event()}

    def numbers():
        try:
            for number in range(100):
                made.append(number)
                if number in reached:
                    reached[number].set()
                yield number
        finally:
            made.append("closed")

    items = ahead(numbers(), room=3)
    assert next(items) == 0
    assert reached[4].wait(60)
    assert not reached[5].wait(0.1)  # one in the thread's hands, three that wait
    assert made == [0, 1, 2, 3, 4]
    items.close()
    assert made[-1] == "closed"
    assert len(made) < 10


def test_errors_of_the_thread_reach_the_reader():
    def numbers():
        yield 1
        raise InputError("broken")

    items = ahead(numbers())
    assert next(items) == 1
    with pytest.raises(InputError, match="broken"):
        next(items)


def test_the_next_part_is_begun_while_the_one_at_hand_is_read():
    reached = {item: Event() for item in "abcdefghi"}

    def part(items):
        for item in items:
            reached[item].set()
            yield item
        if "i" in items:
            raise InputError("broken")

    items = begun_early(map(part, ("abc", "defg", "hi")), room=2)
    assert [next(items) for _ in range(3)] == ["a", "b", "c"]
    assert reached["e"].wait(60)
    assert not any(reached[item].is_set() for item in "fgh")
    assert [next(items) for _ in range(6)] == [*"defghi"]
    with pytest.raises(InputError, match="broken"):
        next(items)


def test_errors_of_what_is_done_behind_reach_the_giver_and_stop_the_rest():
    done = []

    def fail():
        raise OSError("disk full")

    def give():
        with Behind() as behind:
            for work in (lambda: done.append(1), fail, lambda: done.append(2)):
                behind.do(work)

    with pytest.raises(OSError, match="disk full"):
        give()
    assert done == [1]


def test_a_folder_that_is_lost_is_not_created_again(tmp_path):
    writer = FolderWriter(tmp_path / "flows")
    writer.resume(0)
    writer.make_folder()
    writer.folder.rmdir()
    with pytest.raises(FileNotFoundError, match="flows: the folder is gone"):
        writer.make_folder()
