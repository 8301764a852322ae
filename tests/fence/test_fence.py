"""A decoder behind the fence gives the same results, and can do nothing else."""

import os
import re
import signal
import socket
import sys

import numpy as np
import pytest

pytest.importorskip("av", reason="the extra video is not installed")
from clips import write_video
from golden import formula

from campaigns import bad_decoders
from dicl_flow.data.timing import read_video_file, video_frames, video_shots
from dicl_flow.errors import InputError
from dicl_flow.fence import (
    can_fence,
    current_fence,
    decoders,
    put_up_fence,
    readers,
    take_down_fence,
)
from dicl_flow.fence.seal import _MACHINES, program
from dicl_flow.files import decode_flow, decode_image, encode_flow, encode_image

pytestmark = [
    pytest.mark.skipif(not can_fence(), reason="this system cannot fork or pass files"),
    pytest.mark.xdist_group("fence"),
]
PICTURE = formula.pair(24, 32)[0]


@pytest.fixture(scope="module")
def fence():
    put_up_fence((*decoders.MODULES, "campaigns.bad_decoders"), requests=1)
    yield current_fence()
    take_down_fence()


@pytest.fixture(scope="module")
def still_open(fence):
    return fence.still_open()


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    frames = [np.roll(PICTURE, step, 1) for step in range(6)]
    place = tmp_path_factory.mktemp("clip") / "clip.mkv"
    return write_video(place, frames, codec="ffv1", pix_fmt="bgr0", rate=25)


def works():
    """Whether the next request is answered as usual."""
    return bool((decode_image(encode_image("x.png", PICTURE), "x") == PICTURE).all())


def closed(still_open, name):
    if name in still_open:
        pytest.skip(f"this machine leaves it open: {still_open[name]}")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".tiff", ".bmp", ".ppm"])
def test_images_are_the_same_behind_the_fence(fence, monkeypatch, suffix):
    data = encode_image(f"x{suffix}", PICTURE)
    found = decode_image(data, "x")
    monkeypatch.delenv("DICL_FLOW_FENCED")
    np.testing.assert_array_equal(found, decode_image(data, "x"))


@pytest.mark.parametrize(
    ("name", "library"), [("x.flo5", "h5py"), ("x.exr", "OpenEXR"), ("x.png", "cv2")]
)
def test_flow_files_are_the_same_behind_the_fence(fence, monkeypatch, name, library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    flow = np.random.default_rng(0).normal(0, 20, (24, 32, 2)).astype(np.float32)
    calls, call = [], fence.call
    monkeypatch.setattr(fence, "call", lambda *request: calls.append(request[0]) or call(*request))
    data = encode_flow(name, flow)
    found = decode_flow(name, data)
    with pytest.raises(InputError) as error:
        decode_flow(name, data[:-100])
    assert len(calls) == 2
    monkeypatch.delenv("DICL_FLOW_FENCED")
    np.testing.assert_array_equal(found, decode_flow(name, data))
    with pytest.raises(InputError, match=re.escape(str(error.value))):
        decode_flow(name, data[:-100])


def test_videos_are_the_same_behind_the_fence(fence, monkeypatch, clip):
    found, stated = list(video_frames(clip)), read_video_file(clip)
    monkeypatch.delenv("DICL_FLOW_FENCED")
    assert read_video_file(clip) == stated
    np.testing.assert_array_equal(found, list(video_frames(clip)))
    assert len(found) == 6


@pytest.mark.parametrize("kept", [0.3, 0.7])
def test_a_damaged_file_is_refused_in_the_same_words(fence, monkeypatch, tmp_path, clip, kept):
    data = clip.read_bytes()
    damaged = tmp_path / "damaged.mkv"
    damaged.write_bytes(data[: int(kept * len(data))])
    images = [encode_image("x.png", PICTURE)[:90], encode_image("x.jpg", PICTURE)[:200]]

    def problems():
        for data in images:
            with pytest.raises(InputError) as error:
                decode_image(data, "x")
            yield str(error.value)
        with pytest.raises(InputError) as error:
            list(video_frames(damaged))
        yield str(error.value)

    found = list(problems())
    monkeypatch.delenv("DICL_FLOW_FENCED")
    assert found == list(problems())


def test_frames_that_are_not_read_cost_no_transfer(fence, clip):
    shots = video_shots(clip, read_video_file(clip).timing)
    before, kept = next(shots), next(shots)
    assert kept.name == "frame_000001"
    np.testing.assert_array_equal(kept.read(), np.roll(PICTURE, 1, 1))
    with pytest.raises(RuntimeError, match="before the next"):
        before.read()
    shots.close()


def test_the_size_limit_is_that_of_the_caller(fence, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "0.0001")
    with pytest.raises(InputError, match=r"the limit is 0\.0001"):
        works()
    monkeypatch.delenv("DICL_FLOW_MAX_SIZE")
    assert works()


@pytest.mark.parametrize(
    ("name", "words"), [("crash", "crashed (SIGSEGV)"), ("eat", "needs more memory than it may")]
)
def test_a_decoder_that_fails_costs_one_request(fence, name, words):
    with pytest.raises(InputError) as error:
        bad_decoders.act(name)
    assert words in str(error.value)
    assert works()


def test_a_decoder_that_hangs_is_ended(fence, monkeypatch):
    monkeypatch.setattr(decoders, "ANSWER_SECONDS", 0.3)
    with pytest.raises(InputError, match=r"gave no answer within 0\.3 s"):
        bad_decoders.act("hang")
    monkeypatch.setattr(decoders, "ANSWER_SECONDS", 30)
    assert works()


@pytest.mark.heavy  # a second of processor time on a busy machine
def test_a_decoder_that_spins_is_ended(fence, still_open, monkeypatch):
    closed(still_open, "processor time")
    monkeypatch.setattr(decoders, "PROCESSOR_SECONDS", 1)
    with pytest.raises(InputError, match="took more than 1 s of processor time"):
        bad_decoders.act("spin")


def test_a_decoder_cannot_reach_the_network(fence, still_open):
    closed(still_open, "network")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        with pytest.raises(InputError, match=r"no decoder needs|failed"):
            bad_decoders.act("connect", str(listening.getsockname()[1]))
        with pytest.raises(TimeoutError):
            listening.accept()
    assert works()


def test_a_decoder_can_neither_write_nor_read_files(fence, still_open, tmp_path):
    closed(still_open, "files")
    secret, new = tmp_path / "secret", tmp_path / "new"
    secret.write_text("x")
    for name, place in (("write", new), ("read", secret)):
        with pytest.raises(InputError, match=r"failed .(Permission|FileNotFound)Error"):
            bad_decoders.act(name, str(place))
    assert not new.exists()


@pytest.mark.parametrize("name", ["execute", "fork", "kill"])
def test_a_decoder_starts_and_signals_no_process(fence, still_open, name):
    closed(still_open, "system calls")
    with pytest.raises(InputError, match="no decoder needs"):
        bad_decoders.act(name)
    assert works()


def test_a_false_announcement_is_no_memory(fence):
    with pytest.raises(InputError, match="it cannot be decoded"):
        bad_decoders.act("lie")
    assert works()


def test_a_decoder_knows_no_token(fence, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_TOKEN", "a secret")
    assert bad_decoders.act("token") == "none"


def test_a_stream_ends_where_its_decoder_crashes(fence):
    seen = []
    items = bad_decoders.act_later("crash", 3)
    for _ in range(3):
        (number,), read = next(items)
        seen.append((number, int(read().mean())))
    with pytest.raises(InputError, match="crashed"):
        next(items)
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_nothing_of_a_request_reaches_the_next(fence):
    assert [bad_decoders.act("remember") for _ in range(6)] == [1] * 6


def test_an_interrupted_answer_is_not_taken_for_the_next_one(fence, monkeypatch):
    monkeypatch.setattr(fence, "_requests", 10)
    receive = decoders.Line.receive

    def interrupted(line, most=0, seconds=None):
        if most:
            raise KeyboardInterrupt
        return receive(line, most, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(decoders.Line, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bad_decoders.act("remember")
    assert bad_decoders.act("token") == "none"


def test_arguments_may_be_named(fence):
    assert bad_decoders.act(value="x", name="token") == "none"


def test_the_fence_that_is_asked_for_replaces_another(monkeypatch):
    made = []

    class Made:
        process = os.getpid()

        def __init__(self, modules, requests):
            self.requests = requests
            made.append(self)

        def close(self):
            self.requests = None

    monkeypatch.setattr(readers, "Fence", Made)
    monkeypatch.setattr(readers, "_fence", None)
    monkeypatch.setenv("DICL_FLOW_FENCED", "1")
    put_up_fence(requests=100)
    put_up_fence(requests=1)
    assert [each.requests for each in made] == [None, 1]


def test_nothing_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'was here')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert "memory" in readers.machine_fences()["fenceable"]
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("no_namespaces", set()),
        ("no_namespaces_no_filter", {"files", "programs", "network", "system calls"}),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux")
def test_what_a_machine_forbids_is_said_and_the_rest_goes_on(module, names):
    forbidding = decoders.Fence(("dicl_flow.files.images", module))
    try:
        assert {*forbidding.still_open()} == names
        said = readers._described(forbidding.still_open()).get("not_fenced", "")
        assert ("and so were namespaces" in said) == bool(names)
        data, most = encode_image("x.png", PICTURE), PICTURE.nbytes
        reader = "dicl_flow.files.images:_decode_pixels"
        found = forbidding.call(reader, (data, 1), most)
        np.testing.assert_array_equal(found[..., ::-1], PICTURE)
        with pytest.raises(InputError, match=r"needs more memory|failed"):
            forbidding.call("no_namespaces:eat", (), most)
    finally:
        forbidding.close()


def test_a_template_that_was_killed_is_replaced(fence):
    child = fence._template._child
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert works()
    assert fence._template._child is not child


@pytest.mark.parametrize("machine", _MACHINES)
def test_the_filter_is_short_and_lists_each_call_once(machine):
    _, numbers = _MACHINES[machine]
    assert len({*numbers.values()}) == len(numbers)
    made = program(machine)
    tested = [number for code, _, _, number in made[4:] if code == 0x15]
    assert sorted(tested) == sorted(numbers.values())
    assert made[-1][3] & 0xFFFF0000 == 0x00050000  # whatever is not listed


def decided(machine, number, argument=0, architecture=None):
    """What the filter does with a call, all of whose arguments are the same: runs its program."""
    given = {0: number, 4: architecture or _MACHINES[machine][0]}
    made, place, held = program(machine), 0, 0
    while True:
        code, true, false, value = made[place]
        if code == 0x06:
            return {0x7FFF: "allow", 0x8000: "end", 0x0005: "refuse"}[value >> 16]
        if code == 0x20:
            held, steps = given.get(value, argument), 0
        else:
            steps = true if (held == value if code == 0x15 else held & value) else false
        place += 1 + steps


@pytest.mark.parametrize("machine", _MACHINES)
def test_the_filter_decides_by_call_and_argument(machine):
    calls = _MACHINES[machine][1]
    assert decided(machine, calls["read"]) == "allow"
    assert decided(machine, calls["read"], architecture=0x40000003) == "end"  # of 32 bits
    assert decided(machine, calls["read"] | 0x40000000) == "refuse"  # of x32
    for name in ("socket", "execve", "ptrace", "kill", "process_vm_writev"):
        assert decided(machine, calls[name]) == "end"
    for io_uring in (425, 426, 427):
        assert decided(machine, io_uring) == "refuse"
    assert decided(machine, calls["openat"]) == decided(machine, calls["clone3"]) == "refuse"
    assert [decided(machine, calls["clone"], flags) for flags in (0, 17, 0x3D0F00)] == [
        *("end", "end", "allow")
    ]
    for name in ("mmap", "mprotect"):
        assert [decided(machine, calls[name], way) for way in (3, 4, 7)] == [
            *("allow", "refuse", "refuse")
        ]
