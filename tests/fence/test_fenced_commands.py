"""The server and the commands decode behind the fence; a bad file costs one request."""

import json
import os

import cv2
import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("av", reason="the extra video is not installed")
from clips import KnownMotion, write_video
from golden import formula
from hostile import StandIn
from servers import serving

from dicl_flow.fence import (
    can_fence,
    current_fence,
    decoders,
    put_up_fence,
    take_down_fence,
)
from dicl_flow.files import encode_image
from dicl_flow.web.limits import Limits

pytestmark = [
    pytest.mark.skipif(not can_fence(), reason="this system cannot fork or pass files"),
    pytest.mark.xdist_group("fence"),
]
IMAGES = formula.pair(24, 32)


@pytest.fixture(autouse=True)
def fence():
    yield
    take_down_fence()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("dicl_flow.web.jobs.SharedSequence", KnownMotion)
    put_up_fence((*decoders.MODULES, "campaigns.bad_decoders"), requests=1)
    with serving(StandIn(), Limits()) as running:
        yield running


def faulty(name):
    """An image that makes its decoder do something bad."""
    return encode_image("x.png", IMAGES[0]) + f"fault:{name}".encode()


@pytest.mark.parametrize("name", ["crash", "fork", "connect", "eat"])
def test_a_bad_decoder_costs_one_request(server, name):
    good = encode_image("x.png", IMAGES[0])
    answer = server.post("/flow", {"image1": good, "image2": faulty(name)})
    assert answer.status == 400
    assert answer.error.startswith("image2: it cannot be decoded: its decoder ")
    assert server.post("/flow", {"image1": good, "image2": good}).status == 200


def test_a_decoder_that_hangs_costs_one_request(server, monkeypatch):
    good = encode_image("x.png", IMAGES[0])
    monkeypatch.setattr(decoders, "ANSWER_SECONDS", 0.5)
    answer = server.post("/flow", {"image1": faulty("hang"), "image2": good})
    assert (answer.status, "gave no answer within 0.5 s" in answer.error) == (400, True)
    monkeypatch.setattr(decoders, "ANSWER_SECONDS", 30)
    assert server.post("/flow", {"image1": good, "image2": good}).status == 200


def test_a_video_is_read_behind_the_fence(server, tmp_path, monkeypatch):
    calls = []
    stream = current_fence().stream
    monkeypatch.setattr(
        current_fence(), "stream", lambda *request: calls.append(request[0]) or stream(*request)
    )
    frames = [*IMAGES, *IMAGES]
    clip = write_video(tmp_path / "x.mkv", frames, codec="ffv1", pix_fmt="bgr0", rate=25)
    told = server.post("/video?format=npy", {"video": clip.read_bytes()}).json
    while told["state"] in ("waiting", "running"):
        told = server.get(f"/video/{told['id']}").json
    assert (told["state"], told["done"]) == ("done", 3), told
    assert calls == ["dicl_flow.data.timing:_video_shots"]


def test_a_command_says_what_is_fenced(run, tiny_weights, tmp_path):
    for number, image in enumerate(IMAGES):
        cv2.imwrite(str(tmp_path / f"{number}.png"), image)
    paths = [tmp_path / "0.png", tmp_path / "1.png"]
    plain, fenced = tmp_path / "plain.npy", tmp_path / "fenced.npy"
    assert run("flow", *paths, "-o", plain, "-w", tiny_weights)[0] == 0
    code, out, _ = run("flow", *paths, "-o", fenced, "-w", tiny_weights, "--fenced", "--json")
    told = json.loads(out)
    assert code == 0
    assert {*told} >= {"fenced"}
    np.testing.assert_array_equal(np.load(plain), np.load(fenced))
    assert os.environ["DICL_FLOW_FENCED"] == "1"  # for loader processes
