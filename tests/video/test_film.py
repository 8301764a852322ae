"""Videos of film: more than 8 bits, colour tags, sound."""

import json

import av
import numpy as np
import pytest
from clips import know_motion

from dicl_flow.errors import InputError
from dicl_flow.video import find_coding

pytestmark = pytest.mark.heavy

SIZE = (144, 256)
HDR = (9, 16, 9, 1)
"""BT.2020 primaries, PQ, BT.2020 matrix, limited range."""
TAGS = ("color_primaries", "color_trc", "colorspace", "color_range")
RED = (52000, 10000, 23000)


@pytest.fixture
def slow(run, monkeypatch):
    know_motion(monkeypatch)
    return lambda *words: run("interpolate", *words)


def write_clip(path, codec, pixels, tags=HDR, **options):
    """A ramp of 16 bits that moves by 4 px a frame, under a plain red."""
    ramp = np.linspace(20000, 24000, SIZE[1] + 16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = *SIZE, pixels
        for name, value in zip(TAGS, tags, strict=True):
            setattr(stream.codec_context, name, value)
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
    return path


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
