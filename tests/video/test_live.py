"""A live view drops frames that come too fast, counts them, and stays close to the present."""

import http.client
import json
import socket
import threading
from threading import Condition, Event
from time import monotonic
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("av", reason="the extra video is not installed")
from clips import KnownMotion, know_motion, write_video

from dicl_flow.data.timing import Shot
from dicl_flow.files import decode_image
from dicl_flow.video import LivePictures, LiveState, Newest, Selection, Source, paced
from dicl_flow.video.frames import Frame
from dicl_flow.web.view import View, _Handler, serving_view

DEADLINE = 30  # seconds; nothing waits as long if all is well
IMAGES = [np.full((64, 64, 3), 8 * number, np.uint8) for number in range(31)]


def source(rate=None, images=IMAGES):
    def shots():
        for number, image in enumerate(images):
            yield Shot(f"f{number}", number / rate if rate else None, lambda image=image: image)

    return Source(shots, {}, rate, len(images))


def test_the_newest_frame_replaces_those_that_wait():
    taken, arrived, state = Event(), Event(), LiveState()

    def frames():
        yield Frame(0, "f0", 0, IMAGES[0])
        assert taken.wait(DEADLINE)
        for number in range(1, 10):
            yield Frame(number, f"f{number}", number, IMAGES[number])
        arrived.set()

    newest = iter(Newest(frames(), state, lambda: False))
    assert next(newest)[0].number == 0
    taken.set()
    assert arrived.wait(DEADLINE)
    assert next(newest)[0].number == 9
    assert next(newest, None) is None
    assert (state.frames, state.dropped) == (10, 8)


def test_an_error_of_the_source_arrives():
    def frames():
        yield Frame(0, "f0", 0, IMAGES[0])
        raise OSError("unplugged")

    newest = iter(Newest(frames(), LiveState(), lambda: False))
    with pytest.raises(OSError, match="unplugged"):
        list(newest)


class Slow(KnownMotion):
    """Takes as long as `every` frames."""

    every = 5

    def __init__(self, arrivals):
        super().__init__(backward=False)
        self.arrivals = arrivals

    def match(self, before, after):
        self.arrivals.wait_for_more(self.every)
        return super().match(before, after)


class Arrivals:
    """A source whose deliveries can be waited for."""

    def __init__(self, of):
        self._of, self._changed, self._count, self._over = of, Condition(), 0, False

    def shots(self):
        for shot in self._of.shots():
            yield shot
            self._note(1)
        self._note(0)

    def _note(self, more):
        with self._changed:
            self._count, self._over = self._count + more, not more
            self._changed.notify_all()

    def wait_for_more(self, many):
        with self._changed:
            until = self._count + many
            assert self._changed.wait_for(lambda: self._over or self._count >= until, DEADLINE)


def test_latency_is_bounded_where_flow_is_slower_than_the_clip():
    rate, latencies = 50, []
    arrivals = Arrivals(paced(source(rate), Event()))
    frames = Selection().frames(Source(arrivals.shots, {}, rate))
    pictures = LivePictures(frames, Slow(arrivals))
    start = monotonic()
    state = pictures.show(lambda picture: latencies.append(pictures.state.latency_ms))
    seconds = monotonic() - start
    assert seconds >= 30 / rate  # in real time
    assert state.frames == 31
    assert state.flows + 1 + state.dropped == 31
    assert 3 <= state.flows <= 7
    assert 0 < state.latency_ms < 500 * seconds
    assert (state.size, state.ended) == ("64x64", True)


def test_no_frame_is_dropped_where_flow_is_faster():
    pictures, looks, seen = [], [], Condition()

    def note(what, value):
        with seen:
            what.append(value)
            seen.notify_all()

    def frames():
        for number in range(4):
            yield Frame(number, f"f{number}", number, IMAGES[number])
            with seen:  # until it was taken, and its picture is there
                after = len(looks) + 2
                assert seen.wait_for(
                    lambda after=after, number=number: (
                        len(looks) >= after and len(pictures) >= number
                    ),
                    DEADLINE,
                )

    live = LivePictures(
        frames(), KnownMotion(backward=False), stopped=lambda: note(looks, 0) or False
    )
    state = live.show(lambda picture: note(pictures, decode_image(picture, "x")))
    assert (state.flows, state.dropped) == (3, 0)
    assert pictures[0].shape == (64, 128, 3)


def ask(address, path, **headers):
    place = urlsplit(address)
    line = http.client.HTTPConnection(place.hostname, place.port, timeout=DEADLINE)
    line.request("GET", path, headers=headers)
    return line.getresponse()


def test_the_page_gets_the_newest_picture_and_the_numbers():
    view = View(lambda: {"flows": 2})
    view.put(b"old")
    view.put(b"new")
    with serving_view(view, 0) as address:
        assert b"<img" in ask(address, "/").read()
        for path in ("/live.js", "/live.css"):
            assert ask(address, path).status == 200
        assert json.loads(ask(address, "/state").read()) == {"flows": 2}
        stream = ask(address, "/pictures")
        start = [stream.fp.readline() for _ in range(4)]
        assert start[2:] == [b"Content-Type: image/jpeg\r\n", b"\r\n"]
        assert stream.fp.read(3) == b"new"
        # before there is a newer picture, or a browser would not show this one yet
        assert [stream.fp.readline() for _ in start] == start
        view.put(b"newer")
        assert stream.fp.read(5) == b"newer"


def test_a_reader_that_does_not_read_is_left(monkeypatch):
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    view = View(dict)
    with serving_view(view, 0) as address, socket.socket() as idle:
        place, before = urlsplit(address), {*threading.enumerate()}
        idle.connect((place.hostname, place.port))
        idle.sendall(b"GET /pictures HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        (handler,) = {*threading.enumerate()} - before
        view.put(bytes(2**26))  # more than is buffered
        handler.join(DEADLINE)
        assert not handler.is_alive()
        assert ask(address, "/state").status == 200


def test_all_readers_end_with_the_view():
    with serving_view(View(dict), 0) as address:
        streams = [ask(address, "/pictures") for _ in range(8)]
    assert all(stream.read().startswith(b"\r\n--") for stream in streams)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Host": "evil.example"}, 421),
        ("/", {"Host": "127.0.0.1.evil.example:80"}, 421),
        ("/", {"Host": "[127.0.0.1"}, 421),
        ("/state", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/live.py", {}, 404),
        ("/../view.py", {}, 404),
    ],
)
def test_strangers_and_other_files_are_refused(path, headers, status):
    with serving_view(View(dict), 0) as address:
        assert ask(address, path, **headers).status == status


def test_a_clip_is_shown_without_an_output(run, tmp_path, monkeypatch):
    know_motion(monkeypatch)
    clip = write_video(tmp_path / "clip.mkv", IMAGES[:6], rate=50)
    code, out, err = run("video", clip, "--view", "--port", "0", "--json")
    told = json.loads(out)
    assert code == 0, err
    assert (told["written"], told["frames"], told["size"]) == ([], 6, "64x64")
    assert told["flows"] + told["dropped"] == 5
    assert told["address"] in err
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mkv"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give -o to write the flow, or --view"),
        (("--view", "-o", "x.mp4"), "-o writes all"),
        (("--view", "--stats", "x.csv"), "--stats writes all"),
    ],
)
def test_a_run_either_writes_or_shows(run, tmp_path, words, message):
    code, _, err = run("video", "camera:0", *words)
    assert (code, message in err) == (2, True), err
