"""Flow files: exact round trips, and an error for everything that is not one."""

import io
from importlib.util import find_spec

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dicl_flow.errors import InputError
from dicl_flow.files import FLOW_SUFFIXES, encode_flow, read_disparity, read_flow, write_flow
from dicl_flow.files.flow_files import _FORMATS as FORMATS

NEEDS = {".flo5": "h5py", **dict.fromkeys((".exr", ".half.exr", ".st.exr"), "OpenEXR")}
INSTALLED = [suffix for suffix in FLOW_SUFFIXES if find_spec(NEEDS.get(suffix, "numpy"))]
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 6), st.just(2))


def flows(limit):
    values = st.floats(-limit, limit, width=32) | st.just(float("nan"))
    return hnp.arrays(np.float32, SHAPES, elements=values).map(unknown_in_both)


def unknown_in_both(flow):
    flow[np.isnan(flow).any(2)] = np.nan
    return flow


@pytest.mark.parametrize("suffix", [s for s in INSTALLED if s in ".flo5 .pfm .npz .npy .exr"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_float_formats_are_exact(suffix, data):
    flow = data.draw(flows(1e9 if suffix == ".flo" else 2.0**120))
    decoded = FORMATS[suffix][0](encode_flow(f"x{suffix}", flow))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, flow)


@settings(max_examples=60, deadline=None)
@given(flow=flows(511.75))
def test_kitti_is_exact_to_a_128th_and_keeps_validity(flow):
    decoded = FORMATS[".png"][0](encode_flow("x.png", flow))
    np.testing.assert_array_equal(np.isnan(decoded), np.isnan(flow))
    assert np.nanmax(np.abs(decoded - flow), initial=0) <= 1 / 128


@settings(max_examples=150, deadline=None)
@given(suffix=st.sampled_from(INSTALLED), content=st.binary(min_size=1, max_size=200))
def test_noise_is_refused_with_our_own_error(suffix, content):
    with pytest.raises(InputError):
        FORMATS[suffix][0](content)


@settings(max_examples=80, deadline=None)
@given(suffix=st.sampled_from(INSTALLED), data=st.data())
def test_a_truncated_file_is_refused(suffix, data):
    content = encode_flow(f"x{suffix}", np.ones((3, 4, 2), np.float32))
    end = data.draw(st.integers(1, len(content) - 1))
    with pytest.raises(InputError):
        FORMATS[suffix][0](content[:end])


@pytest.mark.parametrize("suffix", INSTALLED)
def test_write_then_read(tmp_path, suffix):
    flow = np.array([[[1.5, -2.25], [np.nan, np.nan]]], np.float32)
    path = tmp_path / f"flow{suffix.upper()}"  # extensions in capitals are the same formats
    write_flow(path, flow)
    np.testing.assert_array_equal(read_flow(path), flow)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_flo_bytes_are_the_published_layout():
    data = encode_flow("x.flo", np.array([[[1, 2], [3, 4], [5, 6]]], np.float32))
    assert data[:4] == np.float32(202021.25).tobytes()
    assert np.frombuffer(data[4:12], "<i4").tolist() == [3, 1]  # width, then height
    assert np.frombuffer(data[12:], "<f4").tolist() == [1, 2, 3, 4, 5, 6]


def test_kitti_bytes_are_the_published_layout():
    flow = np.array([[[1.0, -2.0], [np.nan, np.nan]]], np.float32)
    raw = cv2.imdecode(np.frombuffer(encode_flow("x.png", flow), np.uint8), cv2.IMREAD_UNCHANGED)
    assert raw.dtype == np.uint16
    assert raw[0, 0, ::-1].tolist() == [32768 + 64, 32768 - 128, 1]  # u, v, valid as RGB
    assert raw[0, 1].tolist() == [0, 0, 0]


def test_pfm_rows_run_bottom_to_top_and_either_byte_order_is_read():
    flow = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    data = encode_flow("x.pfm", flow)
    assert data.startswith(b"PF\n2 2\n-1.0\n")
    assert np.frombuffer(data[-24:], "<f4")[:2].tolist() == [0, 1]
    values = np.frombuffer(data[-48:], "<f4").astype(">f4").tobytes()
    np.testing.assert_array_equal(FORMATS[".pfm"][0](b"PF\n2 2\n1.0\n" + values), flow)


def test_values_a_format_cannot_hold_are_refused_not_wrapped():
    with pytest.raises(InputError, match=r"-512 to 511.98"):
        encode_flow("x.png", np.full((1, 1, 2), 512, np.float32))
    with pytest.raises(InputError, match="unknown"):
        encode_flow("x.flo", np.full((1, 1, 2), 2e9, np.float32))
    with pytest.raises(InputError, match="infinite"):
        encode_flow("x.npy", np.full((1, 1, 2), np.inf, np.float32))


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (np.zeros((2, 3, 3)), "shape"),
        (np.zeros((2, 4, 4)), "shape"),
        (np.zeros((0, 4, 2)), "shape"),
        (np.zeros((2, 2, 2), complex), "real numbers"),
        (np.zeros((2, 2, 2), bool), "real numbers"),
    ],
)
def test_arrays_that_are_no_flow_are_refused(flow, message):
    with pytest.raises(InputError, match=message):
        encode_flow("x.flo", flow)


def test_npz_takes_the_array_named_flow_or_the_only_one():
    flow = np.ones((1, 2, 2), np.float32)
    for arrays in ({"flow": flow, "other": np.zeros(3)}, {"anything": flow}):
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        np.testing.assert_array_equal(FORMATS[".npz"][0](buffer.getvalue()), flow)
    buffer = io.BytesIO()
    np.savez(buffer, a=flow, b=flow)
    with pytest.raises(InputError, match="no array named 'flow'"):
        FORMATS[".npz"][0](buffer.getvalue())


def test_pickles_inside_arrays_are_not_opened(tmp_path):
    path = tmp_path / "evil.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="file of numbers"):
        read_flow(path)


def test_one_channel_pfm_is_disparity_not_flow(tmp_path):
    path = tmp_path / "disparity.pfm"
    path.write_bytes(b"Pf\n2 1\n-1\n" + np.array([3, np.inf], "<f4").tobytes())
    np.testing.assert_array_equal(read_disparity(path), [[3, np.nan]])
    with pytest.raises(InputError, match="is not a flow file"):
        read_flow(path)


def test_disparity_errors_name_the_file(tmp_path):
    path = tmp_path / "flow.npy"
    np.save(path, np.zeros((2, 2, 2)))
    with pytest.raises(InputError, match=r"flow\.npy: a disparity map"):
        read_disparity(path)
    with pytest.raises(InputError, match="unknown disparity file extension"):
        read_disparity(tmp_path / "x.tif")


def test_real_files_read(datasets):
    flow = read_flow(datasets / "Middlebury/other-gt-flow/RubberWhale/flow10.flo")
    assert flow.shape == (388, 584, 2)
    assert 0.9 < np.isfinite(flow).all(2).mean() < 1
    sparse = read_flow(datasets / "KITTI2015/training/flow_occ/000010_10.png")
    assert 0.1 < np.isfinite(sparse).all(2).mean() < 0.5
    assert np.nanmax(np.abs(sparse)) < 512
