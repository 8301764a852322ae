"""A small file cannot take all memory: sizes are checked before anything is allocated."""

import io
import os
import struct
import zipfile
from contextlib import suppress
from threading import Thread

import cv2
import numpy as np
import pytest
import typer

from dicl_flow.cli import app
from dicl_flow.data import video_frames
from dicl_flow.errors import InputError
from dicl_flow.files import (
    decode_image,
    max_size,
    read_bytes,
    read_disparity,
    read_flow,
    read_image,
    set_max_size,
    write_flow,
)
from dicl_flow.files.images import image_size

IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
FORMATS = (
    *("png", "jpg", "tiff", "webp", "bmp", "ppm", "pgm", "pam", "hdr"),
    *("jp2", "sr", "gif", "avif", "pfm", "exr"),
)
OWN = {
    "jp2": b"\0\0\0\x0cjP  \xff\x4f\xff\x51" + struct.pack(">HH4I", 41, 0, 8, 6, 1, 1),
    "exr": b"\x76\x2f\x31\1" + b"\2\0\0\0dataWindow\0box2i\0" + struct.pack("<5i", 16, 0, 0, 6, 4),
}
"""Headers of formats that not every OpenCV writes."""
TOO_LARGE = r"1,600 megapixels, the limit is 150; allow more with `max_size=1600`"


@pytest.fixture(autouse=True)
def usual_limit(monkeypatch):
    """Whatever a page of the documentation has set."""
    monkeypatch.delenv("DICL_FLOW_MAX_SIZE", raising=False)


def limit(monkeypatch, megapixels):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", str(megapixels))


def encoded(kind):
    """The image as a file; a format that this OpenCV cannot write is left out."""
    if kind in OWN:
        return OWN[kind]
    image = IMAGE.astype(np.float32) if kind in ("hdr", "pfm") else IMAGE
    try:
        return bytes(cv2.imencode(f".{kind}", image[..., 0] if kind == "pgm" else image)[1])
    except cv2.error:
        pytest.skip(f"this OpenCV writes no .{kind}")


def npy(shape, descr="<f4", data=b""):
    buffer = io.BytesIO()
    about = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, about)
    return buffer.getvalue() + data


def npz(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flow.npy", content)
    return buffer.getvalue()


def png(width, height):
    data = bytearray(cv2.imencode(".png", IMAGE.astype(np.uint16))[1])
    data[16:24] = struct.pack(">II", width, height)
    return bytes(data)


BOMBS = {
    "x.flo": b"PIEH" + struct.pack("<ii", 40000, 40000),
    "x.pfm": b"PF\n40000 40000\n-1.0\n",
    "x.png": png(40000, 40000),
    "x.npy": npy((40000, 40000, 2)),
    "x.npz": npz(npy((40000, 40000, 2))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_flow_that_claims_too_much_is_refused_by_its_header(tmp_path, name):
    """Without the check these would be called truncated, once the memory was taken."""
    (tmp_path / name).write_bytes(BOMBS[name])
    with pytest.raises(InputError, match=rf"{name}: .*40000.*40000.* has {TOO_LARGE}"):
        read_flow(tmp_path / name)


@pytest.mark.parametrize("name", ["x.npy", "x.pfm"])
def test_so_is_a_disparity(tmp_path, name):
    data = {"x.npy": npy((40000, 40000)), "x.pfm": b"Pf\n40000 40000\n-1\n"}[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=TOO_LARGE):
        read_disparity(tmp_path / name)


@pytest.mark.parametrize("wrap", [npy, lambda *about: npz(npy(*about))], ids=["npy", "npz"])
def test_a_header_of_terabytes_is_no_traceback(tmp_path, monkeypatch, wrap):
    path = tmp_path / ("x.npz" if wrap is not npy else "x.npy")
    path.write_bytes(wrap((10**6, 10**6), "<f8"))
    with pytest.raises(InputError, match="1,000,000 megapixels"):
        read_flow(path)
    limit(monkeypatch, 1e9)
    with pytest.raises(InputError, match=r"truncated file: .* needs 8000000000000 bytes, got 0"):
        read_flow(path)


@pytest.mark.parametrize("shape", [(-1, 4, 2), (2, 2, 10**12)])
def test_other_impossible_shapes(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(npy(shape, data=bytes(64)))
    with pytest.raises(InputError, match=r"not a .npy file of numbers|megapixels"):
        read_flow(tmp_path / "x.npy")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2"])
def test_arrays_are_read_as_numpy_reads_them(tmp_path, order, dtype):
    flow = np.arange(24).reshape(3, 4, 2).astype(dtype, order=order)
    np.save(tmp_path / "x.npy", flow)
    np.savez_compressed(tmp_path / "x.npz", flow=flow)
    for name in ("x.npy", "x.npz"):
        np.testing.assert_array_equal(read_flow(tmp_path / name), flow)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_size_of_an_image_stands_in_its_header(kind):
    data = encoded(kind)
    assert image_size(data) == (7, 5)
    assert image_size(data[:5]) is None  # cut off


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_tiffs_of_any_depth_and_order(dtype):
    assert image_size(bytes(cv2.imencode(".tiff", IMAGE.astype(dtype))[1])) == (7, 5)
    entries = struct.pack(">HHIHH", 256, 3, 1, 7, 0) + struct.pack(">HHII", 257, 4, 1, 5)
    assert image_size(b"MM\0*" + struct.pack(">IH", 8, 2) + entries) == (7, 5)
    big = struct.pack("<HHQQ", 256, 16, 1, 7) + struct.pack("<HHQQ", 257, 16, 1, 5)
    assert image_size(b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 2) + big) == (7, 5)


def test_webps_of_any_kind():
    assert image_size(b"RIFF....WEBPVP8X" + bytes(8) + b"\6\0\0\4\0\0") == (7, 5)
    lossy = cv2.imencode(".webp", IMAGE, [cv2.IMWRITE_WEBP_QUALITY, 50])[1]
    lossless = cv2.imencode(".webp", IMAGE, [cv2.IMWRITE_WEBP_QUALITY, 101])[1]
    assert image_size(bytes(lossy)) == image_size(bytes(lossless)) == (7, 5)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_large_image_is_not_even_decoded(tmp_path, monkeypatch, kind):
    path = tmp_path / f"x.{kind}"
    path.write_bytes(encoded(kind))
    monkeypatch.setattr(cv2, "imdecode", pytest.fail)
    limit(monkeypatch, 34e-6)
    with pytest.raises(InputError, match=rf"x\.{kind}: 7x5 has 3.5e-05 megapixels"):
        read_image(path)


def test_a_chunk_that_claims_more_than_the_file_has_is_not_decoded(monkeypatch):
    """OpenCV would allocate 2 GiB for it."""
    data = bytearray(cv2.imencode(".png", np.zeros((4, 5, 3), np.uint8))[1])
    place = data.index(b"IDAT") - 4
    data[place : place + 4] = b"\x7f\xff\xff\xff"
    with monkeypatch.context() as patch:
        patch.setattr(cv2, "imdecode", pytest.fail)
        with pytest.raises(InputError, match="is not an image"):
            decode_image(bytes(data), "x.png")


def test_what_follows_the_end_of_a_png_is_not_read():
    data = bytes(cv2.imencode(".png", IMAGE)[1]) + b"\xff" * 20
    assert (decode_image(data, "x.png")[..., ::-1] == IMAGE).all()


def test_the_limit_can_be_set(tmp_path, monkeypatch):
    limit(monkeypatch, 34e-6)  # and is set back after the test
    path = tmp_path / "x.png"
    path.write_bytes(encoded("png"))
    with pytest.raises(InputError, match="megapixels"):
        read_image(path)
    set_max_size(35e-6)
    assert max_size() == 35e-6
    np.testing.assert_array_equal(read_image(path), IMAGE[..., ::-1])
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="a number of megapixels above 0"):
            set_max_size(bad)
    limit(monkeypatch, "many")
    with pytest.raises(InputError, match=r"DICL_FLOW_MAX_SIZE.*got 'many'"):
        read_image(path)


def test_a_file_longer_than_any_image_is_not_read(tmp_path, monkeypatch):
    limit(monkeypatch, 1e-6)
    path = tmp_path / "x.flo"
    with path.open("wb") as file:
        file.truncate(2**21)  # takes no room on the disk
    monkeypatch.setattr("pathlib.Path.read_bytes", pytest.fail)
    with pytest.raises(InputError, match="2,097,152 bytes"):
        read_flow(path)


def test_frames_of_a_video_are_limited_too(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "x.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        container.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        container.mux(stream.encode())
    assert len(list(video_frames(tmp_path / "x.mp4"))) == 1
    limit(monkeypatch, 1e-6)
    with pytest.raises(InputError, match=r"x\.mp4: 32x32 has"):
        next(video_frames(tmp_path / "x.mp4"))


# --- what has no end ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random", "/dev/null"])
def test_devices_are_refused_by_name(tmp_path, device):
    if not os.path.exists(device):  # noqa: PTH110
        pytest.skip(f"no {device} here")
    with pytest.raises(InputError, match=rf"{device} is a device"):
        read_image(device)
    (tmp_path / "x.flo").symlink_to(device)
    with pytest.raises(InputError, match=r"x\.flo is a device"):
        read_flow(tmp_path / "x.flo")


def written(path, data):
    """Send bytes into a pipe from a thread, as another program would."""

    def write():
        with suppress(BrokenPipeError):  # the reader has had enough
            path.write_bytes(data)

    os.mkfifo(path)
    thread = Thread(target=write)
    thread.start()
    return thread


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_read_to_its_end_or_to_the_limit(tmp_path, monkeypatch):
    writer = written(tmp_path / "pipe", encoded("png"))
    np.testing.assert_array_equal(read_image(tmp_path / "pipe"), IMAGE[..., ::-1])
    writer.join()
    limit(monkeypatch, 1e-6)
    writer = written(tmp_path / "endless", bytes(2**22))
    with pytest.raises(InputError, match=r"endless has at least .* bytes"):
        read_bytes(tmp_path / "endless")
    writer.join()


# --- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOMBS)
def test_show_refuses_a_bomb_in_one_sentence(run, tmp_path, name):
    (tmp_path / name).write_bytes(BOMBS[name])
    code, out, err = run("show", tmp_path / name, "-o", tmp_path / "picture.png")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path / name}: ")
    assert err.count("\n") == 1
    assert "max" in err
    assert not (tmp_path / "picture.png").exists()


def test_flow_refuses_a_device_before_any_work(run, frames, tmp_path, monkeypatch):
    monkeypatch.setattr("dicl_flow.estimation.estimator.load", pytest.fail)
    code, _, err = run("flow", "/dev/zero", frames[1], "-o", tmp_path / "x.flo")
    assert code == 2
    assert "/dev/zero is a device" in err


def test_the_option_raises_and_lowers_the_limit(run, tmp_path, monkeypatch):
    limit(monkeypatch, 1e-6)
    write_flow(tmp_path / "x.flo", np.ones((3, 4, 2), np.float32))
    assert run("show", tmp_path / "x.flo")[0] == 2
    assert run("show", tmp_path / "x.flo", "--max-size", "1")[0] == 0
    assert run("show", tmp_path / "x.flo", "--max-size", "0.00001")[0] == 2
    code, _, err = run("show", tmp_path / "x.flo", "--max-size", "0")
    assert code == 2
    assert "above 0" in err


def test_every_command_that_reads_pictures_has_the_option():
    commands = typer.main.get_command(app).commands
    for group in ("data", "analyze"):
        commands = {**commands, **commands[group].commands}
    reading = "flow show warp interpolate video eval submit train calibrate render ablate"
    for name in (*reading.split(), "check", "peaks", "pixel", "compare"):
        assert any("--max-size" in parameter.opts for parameter in commands[name].params), name


def test_a_png_that_ends_before_its_pixels_is_read_no_further():
    data = png(7, 5)
    start = data.index(b"IDAT") - 4
    end = b"\0\0\0\0IEND\xae\x42\x60\x82"
    lying = data[:start] + end + b"\x7f\xff\xff\xff" + data[start + 4 :]
    with pytest.raises(InputError, match="not an image"):
        decode_image(lying, "x.png")
