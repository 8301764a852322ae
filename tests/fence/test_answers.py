"""A decoder that was taken over may answer anything: it costs an error, and nothing else."""

import json
import socket
from struct import pack

import cv2
import numpy as np
import pytest

from dicl_flow.data.timing import Timing, read_video_file, video_shots
from dicl_flow.errors import InputError
from dicl_flow.fence import readers, wire
from dicl_flow.files import decode_flow, decode_image
from dicl_flow.files.exr import decode_channels
from dicl_flow.files.images import decode_pixels
from dicl_flow.files.reading import set_max_size

TIMING = (25.0, True, 0.0, 1.0, 0.0)
LOOK = (8, "4:2:0", (1, 1, 1, 1), False)
WINDOW = (0, 0, 2, 1)


class Answering:
    """A fence whose decoders answer what they are told to."""

    def __init__(self, *answers):
        self.answers = answers

    def call(self, name, arguments, most):
        return self.answers[0]

    def stream(self, name, arguments, most):
        yield from self.answers


@pytest.fixture
def answering(monkeypatch):
    def answer(*answers):
        monkeypatch.setattr(readers, "current_fence", lambda: Answering(*answers))

    return answer


PIXELS = ["text", {}, np.zeros(3), np.zeros((2, 2, 5), "u1"), np.zeros((0, 2, 3), "u1")]
PIXELS += [np.zeros((2, 2, 1, 3), "u1"), np.zeros((2, 2, 3), bool)]


@pytest.mark.parametrize("answer", PIXELS)
def test_pixels_that_are_none(answering, answer):
    answering(answer)
    with pytest.raises(InputError, match="nonsense"):
        decode_pixels(b"x", cv2.IMREAD_UNCHANGED)


@pytest.mark.parametrize("answer", [*PIXELS, np.zeros((2, 2), "u1"), np.zeros((2, 2, 3))])
def test_images_that_are_none(answering, answer):
    answering(answer)
    with pytest.raises(InputError, match=r"^x"):
        decode_image(b"x", "x")


def test_a_picture_above_the_limit(answering, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "")
    set_max_size(0.001)
    answering(np.zeros((100, 100, 3), np.uint8))
    with pytest.raises(InputError, match="nonsense"):
        decode_image(b"x", "x")


@pytest.mark.parametrize(
    "answer",
    [
        *("text", None, [], (TIMING, 1, 1), (TIMING, "many", 1, None), (TIMING, 1, 1, (8,))),
        ((float("nan"), *TIMING[1:]), 1, 1, LOOK),
        ((-1.0, *TIMING[1:]), 1, 1, LOOK),
        ((25.0, True, "0", 1.0, 0.0), 1, 1, LOOK),
        (TIMING, 1, 1, (8, "4:2:0", ("red", 1, 1, 1), False)),
    ],
)
def test_a_video_that_is_none(answering, tmp_path, answer):
    answering(answer)
    with pytest.raises(InputError, match=r"x\.mp4.*nonsense"):
        read_video_file(tmp_path / "x.mp4")
    answering((TIMING, 1, 25, LOOK))
    assert read_video_file(tmp_path / "x.mp4").look.tags == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("head", "pixels"),
    [
        (("../../x", 0.0), np.zeros((2, 2, 3), "u1")),  # files are named after frames
        (("frame_000000/x", 0.0), np.zeros((2, 2, 3), "u1")),
        ((1, 0.0), np.zeros((2, 2, 3), "u1")),
        (("frame_000000", float("nan")), np.zeros((2, 2, 3), "u1")),
        (("frame_000000", "soon"), np.zeros((2, 2, 3), "u1")),
        (("frame_000000",), np.zeros((2, 2, 3), "u1")),
        (("frame_000000", 0.0), None),
        *((("frame_000000", 0.0), pixels) for pixels in PIXELS),
        (("frame_000000", 0.0), np.zeros((2, 2), "u1")),
        (("frame_000000", 0.0), np.zeros((2, 2, 3), "f4")),
    ],
)
def test_a_frame_that_is_none(answering, tmp_path, head, pixels):
    answering((head, None if pixels is None else lambda: pixels))
    with pytest.raises(InputError, match="nonsense"):
        next(video_shots(tmp_path / "x.mp4", Timing(*TIMING))).read()


@pytest.mark.parametrize(
    "answer",
    [
        *("text", None, ({}, WINDOW, WINDOW, {}), ({"R": "x"}, WINDOW, WINDOW, {})),
        ({"R": np.zeros((2, 3))}, WINDOW, (0, 0, 10**9, 10**9), {}),
        ({"R": np.zeros((2, 3))}, WINDOW, (0, 0, -2, -2), {}),
        ({"R": np.zeros((2, 3))}, WINDOW, ("0", 0, 1, 1), {}),
        ({"R": np.zeros((1, 1))}, WINDOW, WINDOW, {}),
        ({"R": np.zeros((2, 3))}, WINDOW, WINDOW, {"timeCode": (1,)}),
        ({"R": np.zeros((2, 3))}, WINDOW, WINDOW, {"framesPerSecond": ("x", 1)}),
    ],
)
def test_an_openexr_file_that_is_none(answering, answer):
    pytest.importorskip("OpenEXR", reason="OpenEXR is not installed")
    answering(answer)
    with pytest.raises(InputError):
        decode_channels(b"x", ("R",), "picture", (1, "each as one picture"))


@pytest.mark.parametrize("answer", ["text", None, np.zeros(3), np.zeros((2, 2, 3))])
def test_an_hdf5_file_that_is_none(answering, answer):
    pytest.importorskip("h5py", reason="h5py is not installed")
    answering(answer)
    with pytest.raises(InputError):
        decode_flow("x.flo5", b"x")


# --- messages -------------------------------------------------------------------------------------


def received(text, follow=0, body=b""):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(pack(">IQ", len(text), follow) + text + body)
        there.shutdown(socket.SHUT_WR)
        return wire.Line(here).receive(64, 10)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("<f4", shape) for shape in ([-1], [0, 10**30], [1.5], ["2"], [1] * 5, 7, None, [9])),
        *((name, [1]) for name in ("O", "f4,f4", "(2,3)f4", "(2,f4", "S8", "<M8", "<f3", 4, None)),
    ],
)
def test_an_array_that_is_none_ends_the_connection(name, shape):
    with pytest.raises(wire.BrokenLineError):
        received(json.dumps({"array": [name, shape]}).encode(), 8, bytes(8))


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{}", b'{"x": 1}', b'{"a": 1, "b": 2}', b'{"bytes": 9}', b'{"bytes": -1}', b"\xff"),
        *(b'{"dict": [1]}', b'{"tuple": 1}', b"[" * 10**5, b"9" * 10**4),
    ],
    ids=lambda text: text[:20].decode("latin1"),
)
def test_a_text_that_is_no_message_ends_the_connection(text):
    with pytest.raises(wire.BrokenLineError):
        received(text, 8, bytes(8))


@pytest.mark.parametrize(("length", "follow"), [(2**32 - 1, 0), (2, 65), (2, 2**60)])
def test_no_more_is_announced_than_is_allowed(length, follow):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(pack(">IQ", length, follow))
        with pytest.raises(wire.BrokenLineError):
            wire.Line(here).receive(64, 10)


def test_byte_after_byte_does_not_prolong_the_deadline(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(wire, "monotonic", lambda: next(clock))

    class Dripping:
        def gettimeout(self):
            return None

        def settimeout(self, seconds):
            assert seconds > 0

        def recv_into(self, buffer):
            buffer[:1] = b"\0"
            return 1

    with pytest.raises(TimeoutError):
        wire.Line(Dripping()).receive(64, 5)
    assert next(clock) < 10
