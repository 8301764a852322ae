"""A decoder behind the fence gives the same results, and can do nothing else."""

import signal
import socket

import numpy as np
import pytest

pytest.importorskip("av", reason="the extra video is not installed")
from clips import write_video
from golden import formula

from campaigns import bad_decoders
from dicl_flow.data.timing import read_video_file, video_frames, video_shots
from dicl_flow.errors import InputError
from dicl_flow.fence import can_fence, current_fence, put_up_fence, readers, take_down_fence
from dicl_flow.fence.seal import _MACHINES, program
from dicl_flow.files import decode_image, encode_image

pytestmark = [
    pytest.mark.skipif(not can_fence(), reason="this system cannot fork or pass files"),
    pytest.mark.xdist_group("fence"),
]
PICTURE = formula.pair(24, 32)[0]


@pytest.fixture(scope="module")
def fence():
    put_up_fence((*readers.MODULES, "campaigns.bad_decoders"), requests=1)
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
    monkeypatch.setattr(readers, "ANSWER_SECONDS", 0.3)
    with pytest.raises(InputError, match=r"gave no answer within 0\.3 s"):
        bad_decoders.act("hang")
    monkeypatch.setattr(readers, "ANSWER_SECONDS", 30)
    assert works()


@pytest.mark.heavy  # a second of processor time on a busy machine
def test_a_decoder_that_spins_is_ended(fence, still_open, monkeypatch):
    closed(still_open, "processor time")
    monkeypatch.setattr(readers, "PROCESSOR_SECONDS", 1)
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
