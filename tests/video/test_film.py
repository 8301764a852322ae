"""Videos of film: more than 8 bits, colour tags, sound."""

import json
from fractions import Fraction

import av
import numpy as np
import pytest
from clips import know_motion

from dicl_flow.errors import InputError
from dicl_flow.files import Plate, encode_plate
from dicl_flow.video import find_coding

pytestmark = pytest.mark.heavy

SIZE = (144, 256)
HDR = (9, 16, 9, 1)
"""BT.2020 primaries, PQ, BT.2020 matrix, limited range."""
TAGS = ("color_primaries", "color_trc", "colorspace", "color_range")
RED = (52000, 10000, 23000)
LINEAR = ("linear", "premultiplied")


@pytest.fixture
def slow(run, monkeypatch):
    know_motion(monkeypatch)
    return lambda *words: run("interpolate", *words)


def write_clip(path, codec, pixels, tags=HDR, sound="", **options):
    """A ramp of 16 bits that moves by 4 px a frame, over a plain red."""
    ramp = np.linspace(20000, 24000, SIZE[1] + 16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = *SIZE, pixels
        for name, value in zip(TAGS, tags, strict=True):
            setattr(stream.codec_context, name, value)
        track = container.add_stream(sound, rate=48000, layout="mono") if sound else None
        for number in range(3):
            image = np.full((*SIZE, 3), RED, np.uint16)
            image[:72] = ramp[16 - 4 * number :][: SIZE[1], None]
            frame = av.VideoFrame.from_ndarray(image, format="rgb48le")
            how = {"dst_colorspace": tags[2], "dst_color_range": tags[3]} if tags[2] != 2 else {}
            frame = frame.reformat(format=pixels, **how)
            for name, value in zip(TAGS, tags, strict=True):
                setattr(frame, name, value)
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if track is not None:
            container.mux([*_sound(track), *track.encode()])
    return path


def _sound(track, samples=14400):
    """0.3 s that become louder."""
    wave = (np.sin(np.arange(samples) / 10) * np.arange(samples)).astype(np.int16)
    for begin in range(0, samples, 960):
        piece = wave[None, begin : begin + 960]
        frame = av.AudioFrame.from_ndarray(piece, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 48000, begin, Fraction(1, 48000)
        yield from track.encode(frame)


def hear(path):
    """When the sound begins, in seconds, and its samples; nothing if there is none."""
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return None, None
        frames = [*container.decode(audio=0)]
        return frames[0].time, np.concatenate([frame.to_ndarray()[0] for frame in frames])


def look(path):
    """The codec, its pixels, the tags, and pictures of 16 bits."""
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        tags = tuple(int(getattr(context, name)) for name in TAGS)
        pictures = [frame.to_ndarray(format="rgb48le") for frame in container.decode(video=0)]
        return context.name, context.pix_fmt, tags, pictures


@pytest.fixture
def film(tmp_path):
    return write_clip(tmp_path / "film.mov", "prores_ks", "yuv422p10le", profile="3")


def test_ten_bits_stay_ten_bits_in_a_mov(slow, film, tmp_path):
    code, out, _ = slow(film, "-o", tmp_path / "slow.mov", "--factor", 2, "--json")
    assert code == 0
    assert "lost" not in json.loads(out)
    codec, pixels, tags, pictures = look(tmp_path / "slow.mov")
    assert (codec, pixels, tags) == ("prores", "yuv422p10le", HDR)
    assert len(pictures) == 5
    levels = np.unique(pictures[2][8:64, 16:-16, 1] // 64)  # steps of 10 bits
    assert len(levels) > 4000 / 64 / 2  # 8 bits would leave a quarter
    for picture in pictures:  # the matrix of the tags was used
        assert np.abs(picture[100, 128].astype(int) - RED).max() < 600


@pytest.mark.parametrize(("profile", "name"), [("2", "Standard"), ("3", "HQ"), ("0", "Proxy")])
def test_a_mov_states_the_profile_of_its_prores(slow, film, tmp_path, profile, name):
    encoder = f"prores_ks:profile={profile}"
    words = ("-o", tmp_path / "slow.mov", "--factor", 2, "--encoder", encoder)
    assert slow(film, *words)[0] == 0
    with av.open(str(tmp_path / "slow.mov")) as container:
        assert container.streams.video[0].codec_context.profile == name


def test_what_an_mp4_loses_is_said(slow, run, film, tmp_path):
    said = "10 bits, 4:2:2 become 8 bits, 4:2:0; ProRes in .mov has 10 bits, 4:2:2"
    for command in (slow, lambda *words: run("video", *words[:-2])):
        code, out, _ = command(film, "-o", tmp_path / "slow.mp4", "--factor", 2)
        assert code == 0
        assert said in out
        assert look(tmp_path / "slow.mp4")[1] == "yuv420p"
        (tmp_path / "slow.mp4").unlink()


def test_pictures_of_flows_of_film_are_prores_in_a_mov(run, film, tmp_path, monkeypatch):
    know_motion(monkeypatch)
    assert run("video", film, "-o", tmp_path / "flow.mov")[0] == 0
    codec, _, tags, _ = look(tmp_path / "flow.mov")
    assert (codec, tags[:3]) == ("prores", (2, 2, 2))  # colours of the wheel are not the film's


def test_a_folder_gets_all_bits_of_a_video(slow, film, tmp_path):
    from dicl_flow.files import read_image

    assert slow(film, "-o", tmp_path / "slow", "--factor", 2)[0] == 0
    assert {read_image(file).dtype for file in (tmp_path / "slow").iterdir()} == {np.dtype("u2")}


@pytest.mark.parametrize(
    ("encoder", "codec", "pixels"),
    [
        ("prores_ks", "prores", "yuv422p10le"),
        ("dnxhd", "dnxhd", "yuv422p10le"),
        ("dnxhd:profile=dnxhr_sq", "dnxhd", "yuv422p"),
    ],
)
def test_encoders_of_editors_work(slow, tmp_path, encoder, codec, pixels):
    clip = write_clip(tmp_path / "clip.mp4", "libx264", "yuv420p", (1, 1, 1, 1))
    words = ("-o", tmp_path / "slow.mov", "--factor", 2, "--encoder", encoder)
    assert slow(clip, *words)[0] == 0
    assert look(tmp_path / "slow.mov")[:2] == (codec, pixels)
    with pytest.raises(InputError, match=r"which \.mp4 cannot hold"):
        find_coding(tmp_path / "x.mp4", "prores_ks")


@pytest.mark.parametrize("tags", [(1, 1, 1, 1), (6, 6, 6, 1), (1, 13, 1, 2), (2, 2, 2, 0)])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_colour_tags_are_carried_over(slow, tmp_path, tags, suffix):
    clip = write_clip(tmp_path / "clip.mp4", "libx264", "yuv420p", tags)
    output = tmp_path / f"slow{suffix}"
    assert slow(clip, "-o", output, "--factor", 2)[0] == 0
    _, _, found, pictures = look(output)
    assert found[:3] == tags[:3]
    assert (found[3] == 2) == (tags[3] == 2)
    before = look(clip)[3][0][100, 128].astype(int)
    assert np.abs(pictures[0][100, 128] - before).max() < 800  # 3 of 255: both were compressed


@pytest.fixture
def talkie(tmp_path):
    return write_clip(tmp_path / "clip.mov", "libx264", "yuv420p", sound="pcm_s16le")


@pytest.mark.parametrize("suffix", [".mov", ".mkv"])
def test_sound_is_kept_where_the_duration_is(run, slow, talkie, tmp_path, suffix):
    whole = hear(talkie)[1]
    pictures = tmp_path / f"flow{suffix}"
    code, out, _ = run("video", talkie, "-o", pictures, "--show", "frame,wheel", "--json")
    assert (code, json.loads(out)["sound"]) == (0, "kept")
    start, samples = hear(pictures)
    assert start == pytest.approx(0, abs=0.01)
    assert 9600 <= len(samples) < 9600 + 2048  # two pictures at 10 a second
    np.testing.assert_array_equal(samples, whole[: len(samples)])
    smooth = tmp_path / f"smooth{suffix}"
    assert slow(talkie, "-o", smooth, "--factor", 2, "--fps", 20)[0] == 0
    np.testing.assert_array_equal(hear(smooth)[1], whole[: len(hear(smooth)[1])])


@pytest.mark.parametrize("start", ["1", "0.1s"])
def test_sound_begins_with_the_pictures(run, slow, talkie, tmp_path, start):
    assert run("video", talkie, "-o", tmp_path / "x.mov", "--start", start)[0] == 0
    begin, samples = hear(tmp_path / "x.mov")
    whole = hear(talkie)[1]
    views = np.lib.stride_tricks.sliding_window_view(whole, len(samples))
    (place,) = np.flatnonzero((views == samples).all(1))
    assert place / 48000 == pytest.approx(0.1 + begin, abs=2e-3)
    assert begin < 0.03


@pytest.mark.parametrize(
    ("command", "output", "words", "why"),
    [
        ("interpolate", "x.mov", ["--factor", 2], "the video has another duration"),
        ("video", "x.mov", ["--fps", 5], "the video has another duration"),
        ("video", "x.gif", [], "the output has none"),
        ("interpolate", "x", ["--factor", 2], "the output has none"),
        ("video", "x.webm", [], "webm cannot hold pcm_s16le"),
    ],
)
def test_sound_that_is_dropped_is_named(run, slow, talkie, tmp_path, command, output, words, why):
    code, out, _ = run(command, talkie, "-o", tmp_path / output, *words)
    assert code == 0
    assert f"dropped: {why}" in out
    if output.endswith(("mov", "webm")):
        assert hear(tmp_path / output)[0] is None


@pytest.mark.parametrize(
    ("suffix", "more", "codec"),
    [
        (".exr", (), "prores"),
        (".exr", ("--encoder", "dnxhd"), "dnxhd"),
        (".png", ("--encoder", "prores_ks"), "prores"),
    ],
)
def test_plates_become_ten_bits(slow, tmp_path, suffix, more, codec):
    write_plates(tmp_path / "shots", suffix)
    output = tmp_path / "slow.mov"
    code, out, _ = slow(tmp_path / "shots", "-o", output, "--factor", 2, "--json", *more)
    assert code == 0
    found, pixels, tags, pictures = look(output)
    assert (found, pixels, len(pictures)) == (codec, "yuv422p10le", 3)
    assert json.loads(out)["alpha"] == "dropped: a video has none"
    if suffix == ".exr":
        assert tags == (1, 13, 1, 1)
        assert json.loads(out)["lost"] == "16 bits, 4:4:4 become 10 bits, 4:2:2"
        assert json.loads(out)["compressed"].startswith("values above 1")
        bright, mid = (pictures[1][SIZE[0] // 2, x].mean() / 65535 for x in (10, -10))
        assert 0.9 < bright < 1
        assert mid == pytest.approx(0.461, abs=0.01)  # sRGB of 0.18
    else:
        assert json.loads(out)["lost"] == "16 bits become 10; a folder keeps them"


def write_plates(folder, suffix):
    """Two plates with alpha: light of 4 on the left, 0.18 on the right."""
    folder.mkdir()
    pixels = np.full((*SIZE, 4), (0.18, 0.18, 0.18, 1), np.float16)
    pixels[:, : SIZE[1] // 2, :3] = 4
    if suffix == ".png":
        pixels = np.uint16(pixels.clip(max=1).astype(np.float32) * 65535)
    for number in range(2):
        path = folder / f"p{number}{suffix}"
        path.write_bytes(encode_plate(path, Plate(pixels, *LINEAR[: 2 * (suffix == ".exr")])))


@pytest.mark.parametrize("output", ["slow.mov", "slow"])
def test_alpha_of_a_video_is_said_to_be_lost(slow, tmp_path, output):
    clip = write_clip(tmp_path / "clip.mov", "prores_ks", "yuva444p10le", profile="4")
    code, out, _ = slow(clip, "-o", tmp_path / output, "--factor", 2, "--json")
    said = {
        "slow.mov": "12 bits, 4:4:4 and alpha become 10 bits, 4:2:2",
        "slow": "alpha, which is not read from videos",
    }
    assert (code, json.loads(out)["lost"]) == (0, said[output])
