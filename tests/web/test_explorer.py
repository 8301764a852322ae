"""The explorer's routes return flows, scores, clips and uploads as its page needs them."""

import json
import re
import socket
from pathlib import Path
from threading import Event

import cv2
import numpy as np
import pytest
from clips import write_images, write_video
from fake_trees import moving_frames
from networks import explored_networks

from dicl_flow.data import FlowPair
from dicl_flow.errors import InputError
from dicl_flow.files import decode_flow, write_flow
from dicl_flow.lab.analyses import read_pixel
from dicl_flow.lab.volumes import read_volumes

pytest.importorskip("starlette", reason="the extra web is not installed")
from servers import serving

from dicl_flow.web.app import bind
from dicl_flow.web.clips import clip_of_arrays, clip_of_source
from dicl_flow.web.explorer import Exploration, View, _Kept, explorer_pages, open_explored

STATIC = Path(__file__).parents[2] / "src/dicl_flow/web/static"
SIZE = (64, 96)
FRAMES, TRUTH = moving_frames(3, SIZE)
PAIR = "/explore/clips/0/0"


@pytest.fixture(scope="module")
def networks():
    return explored_networks()


@pytest.fixture
def exploration(networks):
    return Exploration(networks, clip_of_arrays("moving", *FRAMES[:2], TRUTH))


@pytest.fixture
def server(exploration, networks):
    with serving(networks["with"], pages=explorer_pages(exploration)) as running:
        yield running
    exploration.close()


def png(image):
    return bytes(cv2.imencode(".png", image[..., ::-1])[1])


def planes(answer, count):
    assert answer.status == 200, answer.body
    return np.frombuffer(answer.body, "<f4").reshape(count, *SIZE).transpose(1, 2, 0)


def test_the_page_is_told_the_flow_of_the_estimator(server, networks):
    clip = server.get("/explore/clips/0").json
    assert clip["pairs"] == [{"name": "moving", "truth": True}]
    assert [n["name"] for n in clip["networks"]] == ["with", "without"]
    assert [n["projection"] for n in clip["networks"]] == [True, False]
    for number, network in enumerate(networks.values()):
        expected = network(*FRAMES[:2], backward=True)
        query = f"?network={number}"
        found = planes(server.get(f"{PAIR}/estimate{query}"), 3)
        np.testing.assert_allclose(found[..., :2], expected.flow, atol=1e-5)
        np.testing.assert_allclose(found[..., 2], expected.confidence, atol=1e-5)
        hidden = np.frombuffer(server.get(f"{PAIR}/occlusion{query}").body, np.uint8)
        np.testing.assert_array_equal(hidden.reshape(SIZE), expected.occlusion)
        file = server.get(f"{PAIR}/flow.flo{query}")
        assert "attachment" in file.headers["content-disposition"]
        np.testing.assert_array_equal(decode_flow("x.flo", file.body), found[..., :2])
    np.testing.assert_array_equal(planes(server.get(f"{PAIR}/truth"), 2), TRUTH)
    frame = cv2.imdecode(np.frombuffer(server.get(f"{PAIR}/frame2.png").body, np.uint8), 1)
    np.testing.assert_array_equal(frame[..., ::-1], FRAMES[1])


def test_beliefs_are_those_of_analyze_pixel(server, networks, tmp_path):
    files = [tmp_path / "one.png", tmp_path / "two.png"]
    for file, frame in zip(files, FRAMES, strict=False):
        file.write_bytes(png(frame))
    expected = read_pixel(networks, FlowPair("one", *files), 70, 20)
    labels = {
        (0, "before"): "with, before DAP",
        (0, "after"): "with, after DAP",
        (1, "before"): "without, without DAP",
    }
    for (network, stage), label in labels.items():
        levels = server.get(f"{PAIR}/beliefs?x=70&y=20&network={network}").json["levels"]
        for level, pixel_map in zip(levels, expected[label], strict=True):
            assert level["stride"] == pixel_map.stride
            found = level[stage]["probability"]  # rows are vertical displacements
            np.testing.assert_allclose(found, pixel_map.probability.T, atol=1e-5)
            plain = pixel_map.probability.clip(1e-30)
            entropy = -(plain * np.log(plain)).sum() / np.log(plain.size)
            assert level[stage]["entropy"] == pytest.approx(entropy, abs=1e-4)
    assert levels[0]["after"] is None


def test_a_click_waits_for_no_estimate(server):
    beliefs = f"{PAIR}/beliefs?x=70&y=20"
    first = server.get(beliefs).json
    busy = Event()
    server.service.call(busy.wait)  # another pair is being estimated
    try:
        assert server.get(beliefs).json == first
    finally:
        busy.set()


def test_a_full_queue_refuses_estimates_for_the_page_too(server):
    server.service.admission.most = 0
    answer = server.get(f"{PAIR}/estimate")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


def test_the_flow_of_a_level_and_the_path_of_a_pixel(server, networks):
    volumes = read_volumes(networks["with"], *FRAMES[:2])
    levels = server.get(f"{PAIR}/beliefs?x=70&y=20").json["levels"]
    for (stride, volume), level in zip(volumes.levels.items(), levels, strict=True):
        for stage in ("matched", "refined"):
            found = planes(server.get(f"{PAIR}/level?stride={stride}&stage={stage}"), 2)
            whole = volumes.to_frame(getattr(volume, stage))
            np.testing.assert_allclose(found, whole, atol=1e-4)
        column, row = level["cell"]
        for stage in ("start", "matched", "refined"):
            cells = getattr(volume, stage)[:, row, column].numpy()
            np.testing.assert_allclose(level[stage], cells * level["cell_size"], atol=1e-4)
    assert levels[0]["start"] == [0, 0]
    assert levels[0]["cell_size"] == pytest.approx([8, 8])


WRONG = {
    "/explore/clips/7": "there is no clip 7",
    "/explore/clips/0/5/estimate": "there is no pair 5",
    "/explore/clips/0/-1/estimate": "there is no pair -1",
    f"/explore/clips/0/{'9' * 5000}/estimate": "a pair must be a whole number",
    "/explore/clips/0/0/estimate?network=2": "expected a network from 0 to 1, got 2",
    "/explore/clips/0/0/beliefs?x=96&y=0": "outside the 96x64 frame",
    "/explore/clips/0/0/beliefs?x=a&y=0": "x must be a whole number",
    "/explore/clips/0/0/level?stride=3": "no refined flow of stride 3",
    "/explore/clips/0/0/level?stride=4&stage=before": "no before flow",
    "/explore/clips/0/0/flow.txt": "known flow files",
    "/explore/clips/0/0/frame3.png": "frame1.png and frame2.png",
    f"/explore/clips/0/0/frame{'9' * 5000}.png": "frame1.png and frame2.png",
    f"/explore/clips/0/0/beliefs?x={'9' * 5000}&y=0": "x must be a whole number",
    "/static/../explorer.py": "nothing at this address",
    "/static/no.js": "nothing at this address",
}


def test_what_cannot_be_answered_is_one_sentence(server):
    for path, words in WRONG.items():
        answer = server.get(path)
        assert answer.status in (400, 404), path
        assert words in answer.error, path
        assert len(answer.error) < 1100


def test_two_images_are_uploaded(server):
    files = {"image1": png(FRAMES[1]), "image2": png(FRAMES[2])}
    answer = server.post("/explore/clips?name=../../one.png&kind=pair", files)
    assert answer.status == 201
    clip = server.get(f"/explore/clips/{answer.json['id']}").json
    assert clip["name"] == "one.png"
    assert server.get(f"/explore/clips/{clip['id']}/0/estimate").status == 200
    assert "not known" in server.get(f"/explore/clips/{clip['id']}/0/truth").error
    small = {"image1": png(FRAMES[1]), "image2": png(FRAMES[2][:32])}
    assert "must have one size" in server.post("/explore/clips", small).error
    text = {"image1": b"no picture", "image2": png(FRAMES[2])}
    assert server.post("/explore/clips", text).status == 415


def test_a_video_is_uploaded_and_removed(server, exploration, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    video = write_video(tmp_path / "clip.mkv", FRAMES).read_bytes()
    answer = server.post("/explore/clips?name=clip.mkv&kind=video", {"video": video})
    clip = server.get(f"/explore/clips/{answer.json['id']}").json
    assert (clip["name"], len(clip["pairs"]), clip["rate"]) == ("clip.mkv", 2, 10)
    for bad in (b"no video", video[:400]):
        refused = server.post("/explore/clips?name=clip.mkv&kind=video", {"video": bad})
        assert refused.status in (400, 415)
        assert str(tmp_path) not in refused.error
    assert len([*(tmp_path / "temporary").iterdir()]) == 1
    exploration.close()
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize("kind", ["folder", "video"])
def test_frames_are_read_in_any_order(kind, tmp_path):
    folder = write_images(tmp_path / "shots", FRAMES)
    path = folder if kind == "folder" else write_video(tmp_path / "clip.mkv", FRAMES)
    clip = clip_of_source(str(path))
    assert (clip.name, len(clip.pairs)) == (path.name, 2)
    for number in (1, 0, 1):
        for found, expected in zip(clip.pair(number).frames(), FRAMES[number:], strict=False):
            np.testing.assert_array_equal(found, expected)


def test_frames_that_make_no_clip_are_refused(tmp_path):
    with pytest.raises(InputError, match="single frame"):
        clip_of_source(str(write_images(tmp_path / "one", FRAMES[:1])))
    sizes = [FRAMES[0], FRAMES[1][:32]]
    with pytest.raises(InputError, match="one size, got 96x64 and 96x32"):
        clip_of_source(str(write_images(tmp_path / "sizes", sizes)))
    with pytest.raises(InputError, match="one size"):
        clip_of_arrays("x", *FRAMES[:2], TRUTH[:32])


def test_estimates_are_computed_once_and_the_oldest_forgotten(exploration):
    view = View("0", 0, 0)
    first = exploration.estimate(view)
    assert exploration.estimate(view) is first
    kept = _Kept(3000)
    for number in range(4):
        kept.get((number,), lambda: np.zeros(1000, np.uint8))
    assert [kept.find((number,)) is not None for number in range(4)] == [False, True, True, True]


def test_five_weights_are_too_many():
    with pytest.raises(InputError, match="at most 4 `weights`"):
        open_explored(["a"] * 5, "cpu", "fp32")


def test_the_page_needs_nothing_but_its_own_files(server):
    """The security policy forbids scripts and styles within the page."""
    index = server.get("/")
    assert "script-src 'self'" in index.headers["content-security-policy"]
    page = index.body.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", page)
    wanted = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page))
    for path in STATIC.glob("*.js"):
        wanted |= {f"static/{name}" for name in re.findall(r'from "\./([^"]+)"', path.read_text())}
    assert wanted == {f"static/{path.name}" for path in STATIC.iterdir()} - {"static/index.html"}
    for address in wanted:
        assert server.get(f"/{address}").status == 200
    texts = [path.read_text() for path in STATIC.iterdir()]
    assert not [t for t in texts if re.search(r"(?<!xmlns=\")https?://|innerHTML|eval\(", t)]


@pytest.fixture
def announced(monkeypatch):
    """Run no server: tell the address at once; return the pages that were opened."""
    pages = []
    told = lambda app, host, port, limits, announce: announce("http://127.0.0.1:1/")  # noqa: E731
    monkeypatch.setattr("dicl_flow.web.app.run_server", told)
    monkeypatch.setattr("webbrowser.open", pages.append)
    return pages


def test_the_command_opens_the_page_where_there_is_a_display(
    run, announced, small_weights, frames, monkeypatch
):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    command = ["explore", *frames, "-w", small_weights, "--device", "cpu", "--json"]
    for display, opened in (("", []), (":0", ["http://127.0.0.1:1/"])):
        monkeypatch.setenv("DISPLAY", display)
        code, out, _ = run(*command)
        assert (code, announced) == (0, opened)
        found = json.loads(out)
        assert found["address"] == "http://127.0.0.1:1/"
        assert (found["weights"], found["backend"]) == (["small"], "fast")
    run(*command, "--host", "0.0.0.0")
    assert re.search(r"\?token=[\w-]{16,}$", announced[-1])


def test_the_command_refuses_what_it_cannot_show(run, frames, small_weights, tmp_path):
    write_flow(tmp_path / "small.flo", np.zeros((3, 4, 2), np.float32))
    small = tmp_path / "small.png"
    small.write_bytes(png(FRAMES[0]))
    wrong = {
        (frames[0], small): "must have one size, got 51x37 and 96x64",
        (*frames, small): "got 3 files",
        (*frames, "--truth", tmp_path / "small.flo"): "--truth must have one size",
        (tmp_path, "--truth", tmp_path / "small.flo"): "--truth is the flow of IMAGE1 IMAGE2",
        (frames[0],): "single frame",
    }
    for arguments, words in wrong.items():
        code, _, error = run("explore", *arguments, "-w", small_weights, "--no-browser")
        assert (code, error.count("\n")) == (2, 1)
        assert words in error


def test_answers_do_not_wait_for_acknowledgements():
    with bind("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
