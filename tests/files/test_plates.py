"""Plates: EXR pictures and alpha, in what the network sees and in what is written."""

import io
import json
import struct
import zlib

import cv2
import fake_trees
import numpy as np
import pytest
from clips import know_motion

from dicl_flow.errors import InputError
from dicl_flow.files import Plate, Reading, decode_plate, encode_plate, read_plate, write_flow
from dicl_flow.files.plates import to_linear, to_srgb

SIZE = (48, 64)
FRAMES, _ = fake_trees.moving_frames(3, SIZE, motion=(4, 0))
LIGHT = [to_linear(frame / np.float32(255)) * 4 for frame in FRAMES]
"""The same in linear light, up to 4."""


@pytest.fixture
def openexr():
    return pytest.importorskip("OpenEXR", reason="OpenEXR is not installed")


def exr(openexr, pixels, names="RGBA", header=()):
    buffer = io.BytesIO()
    channels = {n: np.ascontiguousarray(pixels[..., i]) for i, n in enumerate(names) if i < 3}
    if pixels.shape[2] == 4:
        channels[names[3]] = np.ascontiguousarray(pixels[..., 3])
    openexr.File({"type": openexr.scanlineimage, **dict(header)}, channels).write(buffer)
    return buffer.getvalue()


def still(path):
    write_flow(path, np.zeros((*SIZE, 2), np.float32))
    return path


@pytest.mark.parametrize("depth", [np.float16, np.float32])
def test_values_above_1_and_their_precision_survive_a_warp(openexr, run, tmp_path, depth):
    plate, warped = tmp_path / "b.exr", tmp_path / "warped.exr"
    color = {"chromaticities": (0.713, 0.293, 0.165, 0.83, 0.128, 0.044, 0.32168, 0.33767)}
    plate.write_bytes(exr(openexr, LIGHT[1].astype(depth), header=color))
    out = run("warp", plate, still(tmp_path / "f.flo"), "-o", tmp_path / "warped.png")[1]
    assert "values above 1; .png has none, .exr does" in out
    code, out, _ = run("warp", plate, still(tmp_path / "f.flo"), "-o", warped)
    assert code == 0
    assert "linear, assumed of .exr; otherwise give --color-space srgb" in out
    found = read_plate(warped)
    assert found.pixels.dtype == depth
    assert found.pixels.max() > 1
    np.testing.assert_array_equal(found.pixels, LIGHT[1].astype(depth))
    assert found.header["chromaticities"] == pytest.approx(color["chromaticities"])


def test_the_network_sees_one_curve_within_the_unit_range():
    light = np.linspace(-1, 16, 999, dtype=np.float32)[:, None, None].repeat(3, 2)
    light[:2] = [[[np.nan] * 3], [[np.inf] * 3]]
    seen = Plate(light, "linear", "premultiplied").seen
    assert seen.dtype == np.float32
    assert seen.min() == 0
    assert seen.max() <= 1
    assert (np.diff(seen[light[:, 0, 0] > 0, 0, 0]) > 0)[1:].all()  # highlights keep their detail
    middle = np.full((1, 1, 3), 0.18, np.float32)
    np.testing.assert_allclose(Plate(middle, "linear").seen, to_srgb(middle))
    np.testing.assert_array_equal(Plate(np.float32([[[-1, 0.5, 7]]])).seen, [[[0, 0.5, 1]]])


def test_estimates_of_plates_are_those_of_their_pictures(openexr, run, tmp_path, tiny_weights):
    """What fits into [0, 0.6] is seen as the .png of it would be."""
    for name, frame in zip("ab", FRAMES, strict=False):
        shown = (frame.astype(np.float32) / 255 * 0.75 * 65535).round() / 65535
        (tmp_path / f"{name}.exr").write_bytes(exr(openexr, to_linear(shown.astype("f4"))))
        deep = np.rint(shown[..., ::-1] * 65535).astype(np.uint16)
        cv2.imwrite(str(tmp_path / f"{name}.png"), deep)
    flows = []
    for suffix in (".exr", ".png"):
        frames = [tmp_path / f"{name}{suffix}" for name in "ab"]
        output = tmp_path / f"flow{suffix}.npy"
        words = ("-o", output, "-w", tiny_weights, "--precision", "fp32", "--json")
        code, out, _ = run("flow", *frames, *words)
        assert code == 0
        assert ("color_space" in json.loads(out)) == (suffix == ".exr")
        flows.append(np.load(output))
    np.testing.assert_allclose(*flows, atol=1e-3)


def test_a_clip_of_plates(openexr, run, tmp_path, monkeypatch):
    know_motion(monkeypatch)
    (tmp_path / "clip").mkdir()
    for number, light in enumerate(LIGHT):
        data = exr(openexr, light.astype(np.float16))
        (tmp_path / "clip" / f"p_{number}.exr").write_bytes(data)
    code, out, _ = run("video", tmp_path / "clip", "-o", tmp_path / "flows", "--json")
    assert code == 0
    assert (json.loads(out)["flows"], json.loads(out)["size"]) == (2, "64x48")
    assert "linear" in json.loads(out)["color_space"]
    assert run("interpolate", tmp_path / "clip", "-o", tmp_path / "slow", "--factor", 2)[0] == 0
    files = sorted((tmp_path / "slow").iterdir())
    assert [file.name for file in files] == [f"frame_{number:06d}.exr" for number in range(5)]
    for number, light in enumerate(LIGHT):
        kept = read_plate(files[2 * number]).pixels
        np.testing.assert_array_equal(kept, light.astype(np.float16))
    between = read_plate(files[1]).pixels.astype(np.float32)
    assert between.dtype == np.float32
    assert between.max() > 1
    moved = LIGHT[0][:, 8:-8]  # by 2 px
    assert np.abs(between[:, 10:-6] - moved).mean() < 0.05


def test_layers_are_chosen_by_name(openexr):
    names = ["beauty.R", "beauty.G", "beauty.B", "beauty.A"]
    pixels = np.dstack([LIGHT[0], np.ones(SIZE, np.float32)])
    data = exr(openexr, pixels, names)
    with pytest.raises(InputError, match=r"x: no channels R, G and B; .*`layer='beauty'`"):
        decode_plate(data, "x")
    np.testing.assert_array_equal(decode_plate(data, "x", Reading(layer="beauty")).pixels, pixels)
    flat = encode_plate("x.png", Plate(FRAMES[0]))
    with pytest.raises(InputError, match="x has no layers"):
        decode_plate(flat, "x", Reading(layer="beauty"))


def test_a_data_window_is_placed_in_the_display_window(openexr):
    """Nuke crops what is black; a camera may have overscan."""
    pixels = np.arange(60, dtype=np.float32).reshape(4, 5, 3)
    corners = [(1, 2, 5, 5), (-1, -2, 3, 1)]
    for left, top, right, bottom in corners:
        window = {
            "dataWindow": (np.array([left, top], "i4"), np.array([right, bottom], "i4")),
            "displayWindow": (np.array([0, 0], "i4"), np.array([7, 6], "i4")),
        }
        whole = np.zeros((20, 20, 3), np.float32)
        whole[5 + top : 9 + top, 5 + left : 10 + left] = pixels
        found = decode_plate(exr(openexr, pixels, header=window), "x").pixels
        np.testing.assert_array_equal(found, whole[5:12, 5:13])


@pytest.mark.parametrize("value", ["--color-space", "--alpha"])
def test_wrong_words_are_refused_before_any_work(run, tmp_path, value):
    code, _, error = run("warp", "missing.png", "missing.flo", "-o", tmp_path / "x.png", value, "x")
    assert (code, error.count("\n")) == (2, 1)
    assert f"unknown {value} 'x'; known: " in error


def test_what_is_said_of_images_is_not_for_videos(run, tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"")
    code, _, error = run("video", tmp_path / "clip.mp4", "-o", tmp_path / "x", "--layer", "beauty")
    assert code == 2
    assert "--layer is for images, and" in error


# --- alpha ----------------------------------------------------------------------------------------


def half_covered():
    """Red, and opaque, on the left; green, and transparent, on the right."""
    image = np.zeros((*SIZE, 4), np.uint8)
    image[:, :32], image[:, 32:] = (200, 0, 0, 255), (0, 200, 0, 0)
    return image


def half_way(tmp_path):
    write_flow(tmp_path / "f.flo", np.full((*SIZE, 2), (0.5, 0), np.float32))
    return tmp_path / "f.flo"


def test_alpha_is_warped_and_hidden_colours_do_not_show(run, tmp_path):
    (tmp_path / "b.png").write_bytes(encode_plate("x.png", Plate(half_covered())))
    output = tmp_path / "warped.png"
    code, out, _ = run("warp", tmp_path / "b.png", half_way(tmp_path), "-o", output, "--json")
    assert (code, json.loads(out)["alpha"]) == (0, "straight")
    found = read_plate(output).pixels
    assert found.shape == (*SIZE, 4)
    assert found[20, 31].tolist() == [200, 0, 0, 128]  # no green, which nobody sees
    assert found[20, 10].tolist() == [200, 0, 0, 255]
    assert found[20, 63, 3] == 0  # it comes from outside


def test_premultiplied_colours_are_blended_as_they_are(run, tmp_path):
    (tmp_path / "b.png").write_bytes(encode_plate("x.png", Plate(half_covered())))
    words = (half_way(tmp_path), "-o", tmp_path / "w.png", "--alpha", "premultiplied")
    assert run("warp", tmp_path / "b.png", *words)[0] == 0
    assert read_plate(tmp_path / "w.png").pixels[20, 31].tolist() == [100, 100, 0, 128]


def test_formats_have_their_own_kind_of_alpha(openexr, run, tmp_path):
    """A .png is straight, an .exr file premultiplied: what is seen is the same."""
    image = half_covered()
    image[..., 3] //= 2
    (tmp_path / "b.png").write_bytes(encode_plate("x.png", Plate(image)))
    flow, plate = still(tmp_path / "f.flo"), tmp_path / "b.exr"
    code, out, _ = run("warp", tmp_path / "b.png", flow, "-o", plate)
    assert code == 0
    assert "straight; premultiplied in b.exr" in out
    light = read_plate(plate).pixels
    red, alpha = to_linear(np.float32(200 / 255)), 127 / 255
    np.testing.assert_allclose(light[0, 0], [red * alpha, 0, 0, alpha], rtol=1e-3)
    assert run("warp", plate, flow, "-o", tmp_path / "again.png")[0] == 0
    again = read_plate(tmp_path / "again.png").pixels
    assert again.dtype == np.uint16
    assert np.abs(again[0, 0] / 257 - image[0, 0]).max() < 0.2
    code, out, _ = run("warp", plate, flow, "-o", tmp_path / "again.jpg")
    assert code == 0
    assert "premultiplied; dropped, because .jpg has none" in out
    assert ".jpg has 8 bits" in out


def test_colours_under_transparent_pixels_stay(run, tmp_path):
    """Straight alpha: a key may be pulled again, so what nobody sees is kept where it can be."""
    (tmp_path / "b.png").write_bytes(encode_plate("x.png", Plate(half_covered())))
    assert run("warp", tmp_path / "b.png", half_way(tmp_path), "-o", tmp_path / "w.png")[0] == 0
    found = read_plate(tmp_path / "w.png").pixels
    assert found[20, 32:62].tolist() == [[0, 200, 0, 0]] * 30


def turned_png(image, orientation):
    """The bytes of a PNG whose EXIF data ask to turn it."""
    data = cv2.imencode(".png", image)[1].tobytes()
    entry = struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0)
    exif = b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    check = struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + check
    return data[:33] + chunk + data[33:]  # after the header


@pytest.mark.parametrize("orientation", range(1, 9))
def test_alpha_is_turned_with_its_colours(orientation):
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 4), np.uint8)
    image[..., 3] = image[..., 0]  # the blue of OpenCV
    found = decode_plate(turned_png(image, orientation), "x.png").pixels
    assert found.shape[2] == 4
    np.testing.assert_array_equal(found[..., 3], found[..., 2])


def test_channels_that_are_left_out_are_named(openexr, run, tmp_path):
    names, pixels = ("R", "G", "B", "depth.Z"), np.ones((*SIZE, 4), np.float32)
    (tmp_path / "b.exr").write_bytes(exr(openexr, pixels, names))
    flow, output = still(tmp_path / "f.flo"), tmp_path / "w.exr"
    code, out, _ = run("warp", tmp_path / "b.exr", flow, "-o", output, "--json")
    assert (code, json.loads(out)["left_out"]) == (0, "channels depth.Z")


@pytest.mark.parametrize("second", [half_covered()[..., :3], half_covered().astype(np.uint16)])
def test_frames_of_two_kinds_are_not_blended(run, tmp_path, second):
    for name, image in (("a", half_covered()), ("b", second)):
        (tmp_path / f"{name}.png").write_bytes(encode_plate("x.png", Plate(image)))
    code, _, error = run("interpolate", tmp_path / "a.png", tmp_path / "b.png", "-o", "m.png")
    assert code == 2
    assert "both frames must be of one kind; " in error
    assert "a.png is srgb, uint8, with alpha; " in error


def test_what_a_video_of_images_lacks_is_said(openexr, run, tmp_path, monkeypatch):
    know_motion(monkeypatch)
    for number in range(2):
        file, pixels = tmp_path / "clip" / f"{number}.exr", np.ones((*SIZE, 4), np.float16)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(exr(openexr, pixels))
    words = ("--factor", 2, "--json")
    code, out, _ = run("interpolate", tmp_path / "clip", "-o", tmp_path / "slow.mp4", *words)
    assert code == 0
    assert json.loads(out)["alpha"] == "dropped: a video has none"
    assert json.loads(out)["compressed"].startswith("values above 1")
    assert json.loads(out)["lost"].startswith("16 bits, 4:4:4 become 8 bits, 4:2:0")
    code, out, _ = run("interpolate", tmp_path / "clip", "-o", tmp_path / "slow", *words)
    assert (code, json.loads(out)["alpha"]) == (0, "premultiplied")


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_interpolation_keeps_alpha(run, tmp_path, tiny_weights, depth):
    alpha = np.full(SIZE, np.iinfo(depth).max // 2, depth)
    for name, frame in zip("ab", FRAMES, strict=False):
        image = np.dstack([frame.astype(depth), alpha])
        (tmp_path / f"{name}.png").write_bytes(encode_plate("x.png", Plate(image)))
    frames, output = [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "m.png"
    assert run("interpolate", *frames, "-o", output, "-w", tiny_weights)[0] == 0
    found = read_plate(output).pixels
    assert (found.shape, found.dtype) == ((*SIZE, 4), depth)
    np.testing.assert_array_equal(found[..., 3], alpha)
    clip = ("--factor", 2, "-w", tiny_weights)
    assert run("interpolate", tmp_path / "[ab].png", "-o", tmp_path / "slow", *clip)[0] == 0
    for file in (tmp_path / "slow").iterdir():
        np.testing.assert_array_equal(read_plate(file).pixels[..., 3], alpha)
