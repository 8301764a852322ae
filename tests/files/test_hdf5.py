"""Flow files of HDF5: what others write is read, and nothing that the file only refers to."""

import io
from itertools import count

import numpy as np
import pytest

from dicl_flow.errors import InputError
from dicl_flow.files import decode_flow, encode_flow

h5py = pytest.importorskip("h5py", reason="h5py is not installed")
FLOW = np.random.default_rng(0).normal(0, 20, (37, 53, 2)).astype(np.float32)


def written(fill):
    """The bytes of a file that `fill` writes."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        fill(file)
    return buffer.getvalue()


def with_flow(values=FLOW, **how):
    return written(lambda file: file.create_dataset("flow", data=values, **how))


def test_files_have_the_published_layout():
    data = encode_flow("x.flo5", FLOW)
    assert data == encode_flow("x.flo5", FLOW)  # no time of writing
    with h5py.File(io.BytesIO(data)) as file:
        assert [*file] == ["flow"]
        assert (file["flow"].shape, file["flow"].dtype) == (FLOW.shape, np.float32)
        assert file["flow"].compression == "gzip"
        np.testing.assert_array_equal(file["flow"][()], FLOW)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"chunks": (10, 16, 1)},
        {"chunks": (10, 16, 2), "compression": "gzip", "shuffle": True},
        {"chunks": (64, 64, 2), "maxshape": (None, None, 2), "compression": "gzip"},
        {"dtype": ">f8", "compression": "gzip", "compression_opts": 9},
    ],
)
def test_other_ways_of_storing_it_are_read(how):
    np.testing.assert_array_equal(decode_flow("x.flo5", with_flow(**how)), FLOW)


def virtual(file):
    layout = h5py.VirtualLayout(FLOW.shape, "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname.h5", "flow", FLOW.shape)
    file.create_virtual_dataset("flow", layout)


def unfinished(file):
    array = file.create_dataset("flow", FLOW.shape, "f4", chunks=(10, 53, 2), compression="gzip")
    array[:10] = FLOW[:10]


def bomb(file):
    """A chunk that is a thousand times as long as it should be."""
    import zlib

    array = file.create_dataset("flow", (4, 4, 2), "f4", chunks=(4, 4, 2), compression="gzip")
    array.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(2**20)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_flow(compression="lzf"), "other means than gzip"),
        (with_flow(fletcher32=True), "other means than gzip"),
        (with_flow(np.zeros((2, 3), "S4")), "expected numbers"),
        (with_flow(np.zeros((2, 3, 3), "f4")), "must have the shape"),
        (with_flow(np.float32(1)), "single number"),
        (
            written(lambda file: file.create_dataset("disparity", data=FLOW)),
            "contains .'disparity'",
        ),
        (written(lambda file: file.create_group("flow")), "not an array of this file"),
        (
            written(lambda f: f.__setitem__("flow", h5py.ExternalLink("a.h5", "b"))),
            "not an array of this file",
        ),
        (written(virtual), "in other files"),
        (
            written(
                lambda f: f.create_dataset(
                    "flow", (2, 2, 2), "f4", external=[("/etc/hostname", 0, 32)]
                )
            ),
            "in other files",
        ),
        (written(unfinished), "1 of the 4 chunks"),
        (written(lambda file: file.create_dataset("flow", FLOW.shape, "f4")), "the file has 0"),
        (written(bomb), "truncated, or longer"),
        (written(lambda f: f.create_dataset("flow", (2**15, 2**15, 2), "f4")), "megapixels"),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), "cannot be read as an HDF5 file"),
    ],
    ids=count(),  # not the bytes
)
def test_what_is_no_flow_or_elsewhere_is_refused(data, message):
    with pytest.raises(InputError, match=message) as caught:
        decode_flow("x.flo5", data)
    assert "\n" not in str(caught.value)


def test_every_truncated_file_is_refused():
    data = with_flow(FLOW[:6, :5], chunks=(4, 4, 2), compression="gzip")
    for end in (*range(1, len(data), 17), len(data) - 1):
        with pytest.raises(InputError, match=r"^x\.flo5: "):
            decode_flow("x.flo5", data[:end])
