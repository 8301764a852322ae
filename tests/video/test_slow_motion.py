"""Slow motion of known motion puts each in-between frame in its place."""

import json
from fractions import Fraction

import av
import cv2
import fake_trees
import numpy as np
import pytest
from clips import KnownMotion, know_motion, read_video, write_images, write_video

from dicl_flow.files import read_image, write_flow
from dicl_flow.video import Checkpoint, Selection, SlowMotion, open_source, run
from dicl_flow.video.movies import Movie

pytestmark = pytest.mark.heavy

SIZE = (48, 64)
FINE, _ = fake_trees.moving_frames(9, SIZE, motion=(1, 0))
"""What is to come out of every fourth of them: px by px."""
OTHER, _ = fake_trees.moving_frames(9, SIZE, seed=7, motion=(1, 0))


@pytest.fixture
def slow(run, monkeypatch):
    """Run the command, the network replaced by one that knows the motion."""
    know_motion(monkeypatch)
    return lambda *words: run("interpolate", *words)


def nearest(picture):
    """The number of the fine frame that a picture is most like: videos are lossy."""
    difference = [np.abs(picture.astype(float) - frame)[:, 8:-8].mean() for frame in FINE]
    return int(np.argmin(difference))


def assert_alike(found, expected, tolerance):
    """Mean difference in grey levels, a margin left out: there the next frame shows more."""
    difference = np.abs(found.astype(float) - expected)[:, 8:-8].mean()
    assert difference < tolerance


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".gif"])
def test_a_clip_becomes_slower_by_the_factor(slow, tmp_path, suffix):
    clip, output = write_video(tmp_path / "clip.mkv", FINE[::4]), tmp_path / f"slow{suffix}"
    code, out, _ = slow(clip, "-o", output, "--factor", 4, "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["flows"], report["cuts_held"]) == (2, 0)
    pictures, times = zip(*read_video(output), strict=True)
    np.testing.assert_allclose(times, np.arange(9) / 10, atol=1e-3)  # the rate of the clip
    assert [nearest(picture) for picture in pictures] == list(range(9))
    assert set(tmp_path.glob("[!.]*")) == {clip, output}


def test_a_rate_makes_it_smoother_instead(slow, tmp_path):
    clip, output = write_video(tmp_path / "clip.mkv", FINE[::4]), tmp_path / "smooth.mp4"
    assert slow(clip, "-o", output, "--factor", 4, "--fps", 40)[0] == 0
    with av.open(str(output)) as container:
        assert container.duration == pytest.approx(9 / 40 * 1e6)


@pytest.mark.parametrize("given", ["{}", "{}/*.tif"])
def test_frames_of_16_bits_stay_so_in_a_folder(slow, tmp_path, given):
    deep = [frame.astype(np.uint16) * 257 + 100 for frame in FINE[::4]]
    clip = write_images(tmp_path / "deep", deep, ".tif")
    assert slow(given.format(clip), "-o", tmp_path / "out", "--factor", 4)[0] == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [f"frame_{number:06d}.png" for number in range(9)]
    for number, file in enumerate(files):
        image = read_image(file)
        assert image.dtype == np.uint16
        assert_alike(image / 257, FINE[number] + 100 / 257, 0.5)
        if number % 4 == 0:
            np.testing.assert_array_equal(image, deep[number // 4])
    assert slow(clip, "-o", tmp_path / "slow.mp4", "--factor", 2)[0] == 0  # 8 bits, as videos are
    assert [nearest(picture) for picture, _ in read_video(tmp_path / "slow.mp4")] == [0, 2, 4, 6, 8]


def test_cuts_are_held_not_blended(slow, tmp_path):
    clip = write_images(tmp_path / "clip", [FINE[0], FINE[4], OTHER[0], OTHER[4]])
    code, out, _ = slow(clip, "-o", tmp_path / "out", "--factor", 4, "--json")
    assert code == 0
    assert json.loads(out)["cuts_held"] == 1
    files = [read_image(file) for file in sorted((tmp_path / "out").iterdir())]
    expected = [*FINE[:5], *[FINE[4]] * 3, *OTHER[:5]]
    for found, frame in zip(files, expected, strict=True):
        assert_alike(found, frame, 0.5)


@pytest.mark.parametrize("name", ["out.gif", "out"])
def test_what_was_stopped_goes_on(slow, tmp_path, monkeypatch, name):
    """Two flows are safe, then a frame cannot be read."""
    monkeypatch.setattr(SlowMotion, "piece", 2)
    frames = [*FINE[::4], *OTHER[::4]]
    clip = write_images(tmp_path / "clip", frames)
    (clip / "shot_4.png").write_bytes(b"broken")
    words = (clip, "-o", tmp_path / name, "--factor", 3)
    code, _, error = slow(*words)
    assert code == 2
    assert "frame 4 (shot_4)" in error
    fake_trees.write_image(clip / "shot_4.png", frames[4])
    code, out, _ = slow(*words, "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["flows"], report["flows_of_earlier_runs"], report["cuts_held"]) == (5, 3, 1)
    assert slow(clip, "-o", tmp_path / f"whole_{name}", "--factor", 3)[0] == 0
    if name == "out":
        one, two = (
            [read_image(f) for f in sorted((tmp_path / n).iterdir())]
            for n in (name, f"whole_{name}")
        )
    else:
        one, two = (read_video(tmp_path / n) for n in (name, f"whole_{name}"))
        assert [time for _, time in one] == [time for _, time in two]
        one, two = ([picture for picture, _ in video] for video in (one, two))
    assert len(one) == len(two) == 16
    for found, expected in zip(one, two, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_broken_frame_is_left_out_by_choice(slow, tmp_path):
    clip = write_images(tmp_path / "clip", [FINE[0], FINE[4], FINE[4], FINE[8]])
    (clip / "shot_1.png").write_bytes(b"broken")
    words = (clip, "-o", tmp_path / "out", "--factor", 2, "--on-error", "skip", "--json")
    code, out, _ = slow(*words)
    assert code == 0
    assert (json.loads(out)["flows"], json.loads(out)["missing_flows"]) == (1, 2)
    names = [file.name for file in sorted((tmp_path / "out").iterdir())]
    assert names == [f"frame_{number:06d}.png" for number in (0, 4, 5, 6)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("clip -o x.mp4", "takes --factor"),
        ("clip -o x.mp4 --factor 4 -n 3", "takes --factor"),
        ("clip/a.png clip/b.png -o x.mp4 --factor 4", "as 'frames/*.png'"),
        ("clip/a.png clip/b.png -o x.png --restart", "--restart is for a clip"),
        ("clip/a.png clip/b.png clip/c.png -o x --factor 4", "quote the pattern: 'clip/*.png'"),
        ("clip -o x.npy --factor 4", "written as a video or a folder"),
        ("clip -o clip --factor 4", "clip is the input as well"),
        ("clip -o x.gif --factor 4 --fps 60", "a GIF shows at most 50"),
        ("clip -o x.mp4 --factor 4 --start 9", "the input has 3 frames"),
        ("camera:0 -o x.mp4 --factor 4", "not a clip"),
        ("kitti -o x.mp4 --factor 4", "KITTI's pairs are not a clip"),
        ("mixed -o x --factor 4", "has 16 bits, but the frames before had 8"),
    ],
)
def test_wrong_use_is_one_sentence(slow, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dicl_flow.video.frames._camera", lambda text: open_camera())
    for name, frame in zip("abc", FINE, strict=False):
        fake_trees.write_image(tmp_path / "clip" / f"{name}.png", frame)
    for name in ("000000_10", "000000_11"):
        fake_trees.write_image(tmp_path / "kitti" / f"{name}.png", FINE[0])
    for name, depth in (("a", np.uint8), ("b", np.uint16)):
        fake_trees.write_image(tmp_path / "mixed" / f"{name}.png", FINE[0].astype(depth))
    before = set(tmp_path.iterdir())
    code, _, error = slow(*words.split())
    assert (code, error.count("\n")) == (2, 1)
    assert message in error
    assert set(tmp_path.iterdir()) == before


def open_camera():
    from dicl_flow.video import Source

    return Source(lambda: iter(()), {"path": "camera"}, live=True)


def test_a_video_has_one_size(tmp_path):
    movie = Movie(tmp_path / "x.mp4", tmp_path, Fraction(25))
    movie.add(FINE[0], 0)
    with pytest.raises(ValueError, match="have one size; this is 64x40 after 64x48"):
        movie.add(FINE[0][8:], 1)
    movie.commit()


def test_gif_and_mov_are_read_as_well(tmp_path):
    for suffix in (".gif", ".mov"):
        output = tmp_path / f"out{suffix}"
        with Checkpoint(output, {}) as checkpoint:
            clip = open_source(str(write_images(tmp_path / "clip", FINE[::4])))
            movie = SlowMotion(output, checkpoint.folder, Fraction(20), 2)
            run(clip, Selection(), KnownMotion(), [movie], checkpoint)
        source = open_source(str(output))
        assert source.rate == pytest.approx(20)
        frames = [shot.read() for shot in source.shots()]
        assert [nearest(frame) for frame in frames] == [0, 2, 4, 6, 8]


# --- 16 bits of single images -------------------------------------------------------------------


def deep_pair(tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path, frame in zip(paths, FINE[::4], strict=False):
        deep = frame[..., ::-1].astype(np.uint16) * 257 + 100
        cv2.imwrite(str(path), np.ascontiguousarray(deep))
    return paths


@pytest.mark.parametrize(
    ("suffix", "output", "depth"),
    [(".png", ".png", np.uint16), (".tif", ".tiff", np.uint16), (".png", ".jpg", np.uint8)],
)
def test_images_of_16_bits_stay_so(run, tmp_path, tiny_weights, suffix, output, depth):
    first, second = deep_pair(tmp_path, suffix)
    middle, again = tmp_path / f"middle{output}", tmp_path / f"again{output}"
    network = ("-w", tiny_weights, "--device", "cpu")
    assert run("interpolate", first, second, "-o", middle, "--time", 0, *network)[0] == 0
    flow = tmp_path / "flow.flo"
    write_flow(flow, np.zeros((*SIZE, 2), np.float32))
    assert run("warp", first, flow, "-o", again)[0] == 0
    for path in (middle, again):
        image = read_image(path)
        assert image.dtype == depth
        if depth == np.uint16:
            assert np.abs(image.astype(int) - read_image(first)).max() <= 1
        else:
            assert nearest(image) == 0


def test_frames_of_different_depth_have_nothing_between_them(run, tmp_path, tiny_weights):
    first, _ = deep_pair(tmp_path, ".png")
    cv2.imwrite(str(tmp_path / "flat.png"), FINE[0])
    output = ("-o", tmp_path / "x.png", "-w", tiny_weights)
    code, _, error = run("interpolate", first, tmp_path / "flat.png", *output)
    assert code == 2
    assert "both frames must be of one kind; " in error
