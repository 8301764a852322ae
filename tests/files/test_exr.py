"""OpenEXR flow files: the channels, signs and sizes that compositing programs expect."""

import io
import json
import re
import struct
import sys

import numpy as np
import pytest

from dicl_flow.data import list_pairs
from dicl_flow.errors import InputError
from dicl_flow.files import check_flow_name, decode_flow, encode_flow, read_flow, write_flow

FLOW = np.array([[[1, 2], [3.25, -4]], [[0, 0], [np.nan, np.nan]], [[5, 6], [7, 8]]], np.float32)


@pytest.fixture
def openexr():
    return pytest.importorskip("OpenEXR", reason="OpenEXR is not installed")


def channels(openexr, data):
    found = openexr.File(io.BytesIO(data), separate_channels=True).channels()
    return {name: channel.pixels for name, channel in found.items()}


def exr(openexr, values, header=(), **options):
    buffer = io.BytesIO()
    given = {"compression": openexr.PIZ_COMPRESSION, "type": openexr.scanlineimage, **dict(header)}
    openexr.File(given, values, **options).write(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "dtype"), [("x.exr", np.float32), ("x.half.exr", np.float16)])
def test_vectors_are_named_as_in_nuke_and_point_up(openexr, name, dtype):
    found = channels(openexr, encode_flow(name, FLOW))
    assert list(found) == ["forward.u", "forward.v"]
    assert found["forward.u"].dtype == found["forward.v"].dtype == dtype
    np.testing.assert_array_equal(found["forward.u"], FLOW[..., 0])
    np.testing.assert_array_equal(found["forward.v"], -FLOW[..., 1])


def test_an_st_map_holds_where_to_sample_frame_2_from_the_lower_left(openexr):
    found = channels(openexr, encode_flow("x.st.exr", FLOW))
    assert sorted(found) == ["B", "G", "R"]
    np.testing.assert_allclose(found["R"][0], [(0.5 + 1) / 2, (1.5 + 3.25) / 2])
    np.testing.assert_allclose(found["G"][0], [(2.5 - 2) / 3, (2.5 + 4) / 3], rtol=1e-6)
    assert not found["B"].any()


def test_an_st_map_is_exact_to_a_thousandth_at_8k(openexr):
    flow = np.random.default_rng(0).uniform(-300, 300, (2, 8192, 2)).astype(np.float32)
    found = decode_flow("x.st.exr", encode_flow("x.st.exr", flow))
    np.testing.assert_allclose(found, flow, atol=1e-3)


def test_half_precision_refuses_what_it_cannot_hold(openexr):
    flow = np.full((1, 1, 2), 65504, np.float32)
    np.testing.assert_array_equal(decode_flow("x.exr", encode_flow("x.half.exr", flow)), flow)
    with pytest.raises(InputError, match=r"up to 65504 px, this flow has 65520; use \.exr"):
        encode_flow("x.half.exr", flow + 16)


def test_files_of_others_are_read_by_channel_and_part(openexr):
    u, v = (np.ascontiguousarray(FLOW[..., i]) for i in (0, 1))
    values = {"R": u, "forward.u": u, "forward.v": -v, "Z": u}
    np.testing.assert_array_equal(decode_flow("x.exr", exr(openexr, values)), FLOW)
    buffer = io.BytesIO()
    parts = [openexr.Part({}, {"Z": u}, "depth"), openexr.Part({}, values, "vectors")]
    openexr.File(parts).write(buffer)
    np.testing.assert_array_equal(decode_flow("x.exr", buffer.getvalue()), FLOW)


def test_a_picture_is_not_taken_for_vectors(openexr):
    with pytest.raises(InputError, match=r"x\.exr: no channels forward\.u and forward\.v; .* R, Z"):
        decode_flow("x.exr", exr(openexr, {name: np.ones((2, 2), "f4") for name in "ZR"}))


def test_a_cropped_file_is_refused(openexr):
    window = (np.array([0, 0], "i4"), np.array([9, 9], "i4"))
    values = {name: np.ones((3, 2), "f4") for name in ("forward.u", "forward.v")}
    data = exr(openexr, values, {"displayWindow": window})
    message = r"cover [0, 0, 1, 2] of [0, 0, 9, 9] (left, top, right, bottom); write"
    with pytest.raises(InputError, match=re.escape(message)):
        decode_flow("x.exr", data)


def test_nothing_is_printed_about_a_truncated_file(openexr, capsys):
    with pytest.raises(InputError, match=r"x\.exr: damaged or truncated: .*pixel data for part 0"):
        decode_flow("x.exr", encode_flow("x.exr", FLOW)[:-20])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["x.exr", "x.st.exr"])
def test_sizes_are_checked_in_the_header(openexr, monkeypatch, name):
    monkeypatch.delenv("DICL_FLOW_MAX_SIZE", raising=False)
    data = encode_flow(name, FLOW)
    small, large = struct.pack("<4i", 0, 0, 1, 2), struct.pack("<4i", 0, 0, 39999, 39999)
    with pytest.raises(InputError, match="40000x40000 has 1,600 megapixels, the limit is 150"):
        decode_flow(name, data.replace(small, large))


def test_all_channels_of_a_file_count(openexr, monkeypatch):
    data = exr(openexr, {f"forward.{letter}": np.ones((4, 4), "f4") for letter in "uvwxyz"})
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "48e-6")
    assert decode_flow("x.exr", data).shape == (4, 4, 2)
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "40e-6")
    with pytest.raises(InputError, match=r"all 6 channels of a file, two as one flow, has 4\.8e"):
        decode_flow("x.exr", data)


def test_the_truth_of_a_frame_may_be_exr(openexr, tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    write_flow(tmp_path / "a_flow.half.exr", FLOW)
    (pair,) = list_pairs("pairs", tmp_path)
    assert pair.truth == tmp_path / "a_flow.half.exr"


def test_commands_take_the_format_from_the_extension(openexr, run, frames, tiny_weights, tmp_path):
    st_map = tmp_path / "x.st.exr"
    code, _, _ = run("flow", *frames, "-o", st_map, "-w", tiny_weights, "--precision", "fp32")
    assert code == 0
    assert json.loads(run("show", st_map, "--json")[1])["size"] == "51x37"
    options = ["--format", "half.exr", "-w", tiny_weights, "--precision", "fp32"]
    assert run("video", frames[0].parent / "*.png", "-o", tmp_path / "out", *options)[0] == 0
    (vectors,) = (tmp_path / "out").glob("*.half.exr")
    np.testing.assert_allclose(read_flow(vectors), read_flow(st_map), rtol=1e-2, atol=1e-2)


def test_without_the_library_nothing_is_estimated(run, frames, tiny_weights, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    missing = ".exr files need OpenEXR: pip install 'dicl-flow[exr]'"
    for arguments in (
        ("flow", *frames, "-o", tmp_path / "x.exr"),
        ("flow", *frames, "-o", "-", "--format", "st.exr"),
        ("video", tmp_path, "-o", tmp_path / "out", "--format", "half.exr"),
    ):
        code, _, error = run(*arguments, "-w", tiny_weights)
        assert (code, missing in error) == (2, True), error
    (tmp_path / "x.exr").write_bytes(b"anything")
    with pytest.raises(InputError, match=re.escape(missing)):
        read_flow(tmp_path / "x.exr")
    check_flow_name("x.flo")
