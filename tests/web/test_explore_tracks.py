"""The explorer follows a pixel through a clip, and sends each frame when it is computed."""

import http.client
import json
from threading import Event

import pytest
from clips import KnownShifts, write_images, write_video
from fake_trees import moving_frames
from networks import explored_networks

pytest.importorskip("starlette", reason="the extra web is not installed")
from servers import serving, wait_for

from dicl_flow.web.clips import Clip, ExploredPair, clip_of_arrays, clip_of_source
from dicl_flow.web.explorer import Exploration, explorer_pages

SIZE = (64, 96)
MOTION = (3, 2)
FRAMES, _ = moving_frames(6, SIZE, motion=MOTION)
OTHERS, _ = moving_frames(3, SIZE, seed=7, motion=(1, -2))
CLIP = "/explore/clips/0"


class Shifts(KnownShifts):
    scenes = ((FRAMES, MOTION), (OTHERS, (1, -2)))


class Gated(Shifts):
    """Waits in its second frame until it may go on."""

    go = Event()

    def match_pairs(self, pairs):
        pairs = list(pairs)
        if len(pairs) and pairs[0][1] is not FRAMES[1]:
            assert self.go.wait(60)
        return super().match_pairs(pairs)


def clip_of(frames):
    """A clip of frames in memory."""
    numbers = range(len(frames) - 1)
    pairs = [
        ExploredPair(str(n), lambda n=n: frames[n], lambda n=n: frames[n + 1], follows=n > 0)
        for n in numbers
    ]
    return Clip("frames", pairs)


@pytest.fixture(scope="module")
def network():
    return explored_networks()["with"]


@pytest.fixture
def open_server(network, monkeypatch):
    """Return a function that runs the explorer on a clip, with the true flows of `Shifts`."""
    running = []

    def start(clip, sequence=Shifts):
        monkeypatch.setattr("dicl_flow.web.tracks.FlowSequence", sequence)
        monkeypatch.setattr(Shifts, "pairs", 0)
        exploration = Exploration({"with": network, "again": network}, clip)
        running.append(serving(network, pages=explorer_pages(exploration)))
        return running[-1].__enter__()

    yield start
    for server in running:
        server.__exit__(None, None, None)


def lines(answer):
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


def check_places(places, frame, x, y):
    """Positions are those of the motion; each flow is of a known interval, or from the pixel."""
    for place in places:
        steps = place["frame"] - frame
        expected = [x + steps * MOTION[0], y + steps * MOTION[1]]
        assert [place["x"], place["y"]] == pytest.approx(expected, abs=1e-3)
        assert abs(place["frame"] - place["from"]) in {0: (0,)}.get(steps, (1, 4, abs(steps)))
        assert (place["from"] - frame) * steps >= 0
        assert place["error"] >= 0


@pytest.mark.parametrize("kind", ["folder", "video"])
def test_a_pixel_is_followed_both_ways(open_server, kind, tmp_path):
    write = {"folder": write_images, "video": write_video}[kind]
    path = write(tmp_path / {"folder": "shots", "video": "clip.mkv"}[kind], FRAMES)
    head, *places = lines(open_server(clip_of_source(str(path))).get(f"{CLIP}/2/track?x=40&y=30"))
    assert head == {"first": 0, "last": 5, "cropped": False, "intervals": [1, 4, 16]}
    assert [place["frame"] for place in places] == [2, 3, 4, 5, 1, 0]
    assert places[0] == {"frame": 2, "x": 40, "y": 30, "visible": True, "error": 0, "from": 2}
    check_places(places, 2, 40, 30)
    assert all(place["visible"] for place in places)


def test_another_pixel_of_the_frame_needs_no_flows(open_server, monkeypatch):
    server = open_server(clip_of(FRAMES))
    server.get(f"{CLIP}/2/track?x=40&y=30")
    before = Shifts.pairs
    assert before > 0
    _, *places = lines(server.get(f"{CLIP}/2/track?x=20&y=25"))
    check_places(places, 2, 20, 25)
    assert Shifts.pairs == before
    monkeypatch.setattr("dicl_flow.web.tracks._POSITION_BYTES", 0)  # one pixel only
    for x, y in ((40, 30), (20, 25)):
        _, *places = lines(server.get(f"{CLIP}/3/track?x={x}&y={y}"))
        check_places(places, 3, x, y)
        assert Shifts.pairs > before
        before = Shifts.pairs


def test_lines_come_while_others_are_computed_and_end_when_the_sender_leaves(open_server):
    Gated.go.clear()
    server = open_server(clip_of(FRAMES), Gated)
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    connection.request("GET", f"{CLIP}/0/track?x=40&y=30")
    answer = connection.getresponse()
    found = [json.loads(answer.readline()) for _ in range(3)]
    assert [line.get("frame") for line in found] == [None, 0, 1]
    answer.close()
    connection.close()
    wait_for(lambda: not server.service.admission.requests)
    Gated.go.set()
    server.service.call(lambda: None).result(60)
    assert Shifts.pairs < 5  # frame 1: one, frame 2: two; no frame after it
    _, *places = lines(server.get(f"{CLIP}/0/track?x=40&y=30"))
    check_places(places, 0, 40, 30)  # goes on where it stopped


def test_a_cut_ends_a_track(open_server):
    server = open_server(clip_of([*FRAMES[:3], *OTHERS]))
    _, *places = lines(server.get(f"{CLIP}/1/track?x=40&y=30"))
    check_places([places[0], places[1], places[-1]], 1, 40, 30)
    assert places[2:-1] == [{"frame": 3, "cut": 3}, {"frame": 4}, {"frame": 5}]
    _, *places = lines(server.get(f"{CLIP}/4/track?x=40&y=30"))
    assert [place["frame"] for place in places[:3]] == [4, 5, 3]
    assert places[3:] == [{"frame": 2, "cut": 3}, {"frame": 1}, {"frame": 0}]


def test_a_track_goes_on_if_its_scene_returns(open_server):
    server = open_server(clip_of([*FRAMES[:3], OTHERS[0], *FRAMES[3:]]))
    _, *places = lines(server.get(f"{CLIP}/0/track?x=40&y=30"))
    assert [place["frame"] for place in places if "x" not in place] == [3]
    assert [place["frame"] for place in places if "cut" in place] == [3, 4]
    assert places[-1]["x"] == pytest.approx(40 + 5 * MOTION[0], abs=0.1)


def test_after_a_long_other_scene_nothing_is_asked_for(open_server, monkeypatch):
    monkeypatch.setattr("dicl_flow.tracking.tracker.PATIENCE", 1)
    server = open_server(clip_of([*FRAMES[:3], *OTHERS]))
    _, *places = lines(server.get(f"{CLIP}/0/track?x=40&y=30"))
    assert [place["frame"] for place in places] == [0, 1, 2, 3, 4]


def test_pairs_that_do_not_follow_each_other_are_clips_of_their_own(open_server, tmp_path):
    one, two = (clip_of_arrays("x", *frames[:2]).pairs[0] for frames in (FRAMES, OTHERS))
    stretch = Clip("both", [one, two]).stretch(1)
    assert (stretch.first, stretch.last) == (1, 2)
    assert stretch.read(2) is OTHERS[1]
    head, *places = lines(open_server(Clip("both", [one, two])).get(f"{CLIP}/0/track?x=40&y=30"))
    assert (head["first"], head["last"], len(places)) == (0, 1, 2)


def test_a_track_has_a_limit_of_frames(open_server, monkeypatch):
    monkeypatch.setattr("dicl_flow.web.tracks._CPU_REACH", 2)
    head, *places = lines(open_server(clip_of(FRAMES)).get(f"{CLIP}/3/track?x=40&y=30"))
    assert (head["first"], head["last"], head["cropped"]) == (1, 5, True)
    assert [place["frame"] for place in places] == [3, 4, 5, 2, 1]


def test_a_frame_of_another_size_is_the_last_line(open_server):
    server = open_server(clip_of([*FRAMES[:3], FRAMES[3][:32]]))
    *_, last = lines(server.get(f"{CLIP}/0/track?x=40&y=30"))
    assert last == {"problem": "frames 0 and 3 must have one size, got 96x32 and 96x64"}


WRONG = {
    "7/track?x=1&y=1": "there is no pair 7; frames has 5",
    "0/track?x=96&y=1": "the point 96,1 lies outside the frames, which are 96x64",
    "0/track?x=1&y=-1": "the point 1,-1 lies outside",
    "0/track?x=1": "y must be a whole number, got ''",
    "0/track?x=1.5&y=1": "x must be a whole number, got '1.5'",
    "0/track?x=1&y=1&network=2": "expected a network from 0 to 1, got 2",
}


def test_what_cannot_be_followed_is_one_sentence(open_server):
    server = open_server(clip_of(FRAMES))
    for warm in (False, True):  # also when the other pixels are known
        for path, words in WRONG.items():
            answer = server.get(f"{CLIP}/{path}")
            assert (answer.status, warm) == (400, warm)
            assert words in answer.error
        server.get(f"{CLIP}/0/track?x=1&y=1")
    server.service.admission.most = 0
    assert server.get(f"{CLIP}/1/track?x=1&y=1").status == 503
