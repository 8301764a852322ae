"""The server gives flow over HTTP in every format, and an error for everything else."""

import http.client
import json
import re
import signal
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import cv2
import numpy as np
import pytest
from children import started
from conftest import SMALL
from golden import formula

from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.files import decode_flow
from dicl_flow.models import build

pytest.importorskip("starlette", reason="the extra web is not installed")
from hostile import StandIn
from servers import BOUNDARY, busy_estimator, form, serving, wait_for

from dicl_flow.web.app import bind
from dicl_flow.web.limits import Limits
from dicl_flow.web.openapi import describe_interface
from dicl_flow.web.service import check_seen

IMAGES = formula.pair(37, 51)
FRAMES = {f"image{i + 1}": bytes(cv2.imencode(".png", image)[1]) for i, image in enumerate(IMAGES)}


@pytest.fixture(scope="module")
def estimator():
    return FlowEstimator(build(SMALL), "cpu", "fp32", "plain")


@pytest.fixture(scope="module")
def server(estimator):
    with serving(estimator) as running:
        yield running


@pytest.fixture(scope="module")
def expected(estimator):
    return estimator(*(image[..., ::-1] for image in IMAGES), backward=True)


@pytest.fixture
def held(server):
    """Keep the estimator busy until the event is set."""
    with busy_estimator(server) as go:
        yield go


def claimed_png(width, height):
    """A PNG of less than 100 bytes that claims to have this size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + head


# --- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "accept", "kind"),
    [
        ("", "*/*", "application/x-flo"),
        ("?format=flo", "image/png", "application/x-flo"),
        ("?format=kitti", "*/*", "image/x-kitti-flow"),
        ("?format=npz", "*/*", "application/x-npz"),
        ("?format=wheel", "*/*", "image/png"),
        ("", "image/png", "image/png"),
        ("", "image/*", "image/png"),
        ("", "text/html, image/*;q=0.5, application/x-npz;q=0.9", "application/x-npz"),
    ],
)
def test_the_flow_of_two_images(server, expected, query, accept, kind):
    answer = server.post(f"/flow{query}", FRAMES, {"Accept": accept})
    assert (answer.status, answer.headers["content-type"]) == (200, kind)
    if kind == "image/png":
        picture = cv2.imdecode(np.frombuffer(answer.body, np.uint8), 1)[..., ::-1]
        assert np.abs(picture.astype(int) - expected.to_rgb()).max() <= 1
        return
    name = re.search(r'filename="(.+)"', answer.headers["content-disposition"])[1]
    exact = 0.01 if "kitti" in kind else 1e-4
    assert np.abs(decode_flow(name, answer.body) - expected.flow).max() < exact


def test_npz_has_what_was_added(server, expected, tmp_path):
    answer = server.post("/flow?backward=1&occlusion=true&confidence=yes", FRAMES)
    (tmp_path / "x.npz").write_bytes(answer.body)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert {*found} == {"flow", "backward", "occlusion", "confidence"}
        np.testing.assert_allclose(found["backward"], expected.backward.flow, atol=1e-4)
        np.testing.assert_allclose(found["confidence"], expected.confidence, atol=1e-4)
        assert (found["occlusion"] != expected.occlusion).mean() < 0.01


OTHER = bytes(cv2.imencode(".png", np.zeros((40, 51, 3), np.uint8))[1])
DAMAGED = FRAMES["image2"][:60] + bytes(2000) + FRAMES["image2"][2060:]
WRONG = [
    ("/flow", {"image1": FRAMES["image1"]}, 400, "image2 is missing or empty"),
    ("/flow", FRAMES | {"image2": b""}, 400, "image2 is missing or empty"),
    ("/flow", FRAMES | {"image3": b"x"}, 400, "unknown field 'image3'"),
    ("/flow", FRAMES | {"image2": b"no picture"}, 415, "image2 is not a PNG"),
    ("/flow", FRAMES | {"image2": DAMAGED}, 400, "image2 is not an image"),
    ("/flow", FRAMES | {"image2": OTHER}, 400, "must have one size, got 51x37 and 51x40"),
    ("/flow?format=jpeg", FRAMES, 400, "unknown format 'jpeg'"),
    ("/flow?format=flo&backward=1", FRAMES, 400, "only format=npz has room for backward"),
    ("/flow?backward=maybe", FRAMES, 400, "backward is true or false, got 'maybe'"),
    ("/nothing", FRAMES, 404, "there is nothing at this address"),
    ("/health", FRAMES, 405, "this address takes other methods"),
]


@pytest.mark.parametrize(("path", "files", "status", "sentence"), WRONG)
def test_what_is_wrong_is_said_in_a_sentence(server, path, files, status, sentence):
    answer = server.post(path, files)
    assert answer.status == status
    assert answer.error.startswith(sentence) or sentence in answer.error
    assert "\n" not in answer.error
    assert not re.search(r"/(work|home|tmp|usr|src)|\.py|Traceback", answer.error)


def test_other_bodies_and_types_are_refused(server):
    assert server.ask("POST", "/flow", b"x").status == 415
    kind = {"Content-Type": "multipart/form-data; boundary=" + "x" * 80}
    assert server.ask("POST", "/flow", b"x", kind).status == 400
    cut = form(FRAMES)[:-20]
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    assert server.ask("POST", "/flow", cut, kind).error == "the form is damaged or incomplete"
    assert server.post("/flow", FRAMES, {"Accept": "text/html"}).status == 406


def test_a_small_file_that_claims_many_pixels_is_not_decoded(server, monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", pytest.fail)
    huge = claimed_png(32000, 32000)
    assert len(huge) < 100
    answer = server.post("/flow", FRAMES | {"image2": huge})
    assert (answer.status, "32000x32000" in answer.error) == (413, True)


def test_a_thin_frame_counts_as_the_network_sees_it(server, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "1")
    monkeypatch.setattr(cv2, "imdecode", pytest.fail)
    answer = server.post("/flow", FRAMES | {"image2": claimed_png(65535, 1)})
    multiple = SMALL.pad_multiple
    padded = f"image2 would be padded from 65535x1 to 65536x{multiple} pixels"
    assert (answer.status, answer.error.startswith(padded)) == (413, True), answer.error


def test_square_frames_of_the_largest_size_are_taken(estimator, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "1")
    for size in ((1000, 1000), (990, 1010), (500, 2000)):
        check_seen(estimator, size, "a frame")


def test_too_many_bytes_are_refused_before_they_are_read(estimator):
    with serving(estimator, Limits(max_upload=1000)) as server:
        answer = server.post("/flow", FRAMES)
        assert (answer.status, "at most 1000 bytes" in answer.error) == (413, True)
        kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        chunks = iter([form(FRAMES)[:900], b"x" * 200])  # a length that is not told before
        assert server.ask("POST", "/flow", chunks, kind).status == 413
        assert server.service.admission.bytes == 0


# --- one thread for the estimator --------------------------------------------------------------


@pytest.mark.heavy
def test_a_cpu_estimates_what_waits_one_by_one(server):
    alone = server.post("/flow", FRAMES).body
    bodies, batches = ask_at_once(server, 5)
    assert set(bodies) == {alone}
    assert batches == 5


@pytest.mark.heavy
def test_what_waits_is_estimated_in_batches(estimator, expected):
    with serving(estimator, Limits(batch=8)) as running:
        bodies, batches = ask_at_once(running, 5)
    assert batches == 2  # 4 and 1
    flows = [decode_flow("x.flo", body) for body in bodies]
    assert all(np.abs(flow - expected.flow).max() < 1e-3 for flow in flows)


def ask_at_once(server, number):
    """Ask for one flow while the estimator is busy; return the answers and how many batches."""
    before = server.get("/metrics").body.decode()
    with busy_estimator(server) as go, ThreadPoolExecutor(number) as pool:
        answers = [pool.submit(server.post, "/flow", FRAMES) for _ in range(number)]
        wait_for(lambda: server.service.waiting == number)
        go.set()
        bodies = [answer.result().body for answer in answers]
    after = server.get("/metrics").body.decode()
    assert counted(after, "pairs_total") - counted(before, "pairs_total") == number
    return bodies, counted(after, "batches_total") - counted(before, "batches_total")


def counted(text, name):
    return float(re.search(rf"^dicl_flow_{name} (.+)$", text, re.MULTILINE)[1])


@pytest.mark.heavy
def test_a_batch_that_fails_is_estimated_one_by_one(estimator, monkeypatch):
    estimate = FlowEstimator.__call__

    def fails_with_several(self, image1, image2, **options):
        if len(image1) > 1:
            raise RuntimeError("out of memory")
        return estimate(self, image1, image2, **options)

    monkeypatch.setattr(FlowEstimator, "__call__", fails_with_several)
    with serving(estimator, Limits(batch=2)) as running:
        bodies, _ = ask_at_once(running, 2)
    assert len(set(bodies)) == 1
    assert decode_flow("x.flo", bodies[0]).shape == (37, 51, 2)


def test_a_failure_is_told_without_its_reason(server, monkeypatch, caplog):
    monkeypatch.setattr(FlowEstimator, "__call__", lambda *a, **k: 1 / 0)
    answer = server.post("/flow", FRAMES)
    assert (answer.status, answer.error) == (500, "the server failed; its log has the reason")
    assert "content-security-policy" in answer.headers
    wait_for(lambda: "ZeroDivisionError" in caplog.text)


@pytest.mark.heavy
def test_a_full_queue_answers_503(estimator):
    with (
        serving(estimator, Limits(queue=1)) as server,
        ThreadPoolExecutor(1) as pool,
        busy_estimator(server) as go,
    ):
        first = pool.submit(server.post, "/flow", FRAMES)
        wait_for(lambda: server.service.waiting == 1)
        second = server.post("/flow", FRAMES)
        assert (second.status, second.headers["retry-after"]) == (503, "1")
        go.set()
        assert first.result().status == 200


@pytest.mark.heavy
def test_a_slow_estimate_answers_503(estimator):
    with serving(estimator, Limits(timeout=1.0)) as server:
        with busy_estimator(server):
            answer = server.post("/flow", FRAMES)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "took more than 1 s" in answer.error
        wait_for(lambda: server.service.waiting == 0)
        assert counted(server.get("/metrics").body.decode(), "pairs_total") == 0  # nobody waits


def test_who_leaves_is_not_estimated_for(server, held):
    before = counted(server.get("/metrics").body.decode(), "pairs_total")
    connection = http.client.HTTPConnection(server.host, server.port)
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    connection.request("POST", "/flow", form(FRAMES), kind)
    wait_for(lambda: server.service.waiting == 1)
    connection.close()
    wait_for(lambda: server.service.admission.requests == 0)
    held.set()
    wait_for(lambda: server.service.waiting == 0)
    assert counted(server.get("/metrics").body.decode(), "pairs_total") == before


@pytest.mark.heavy
def test_the_end_waits_for_what_was_accepted(estimator):
    with (
        serving(estimator) as server,
        ThreadPoolExecutor(1) as pool,
        busy_estimator(server) as go,
    ):
        answer = pool.submit(server.post, "/flow", FRAMES)
        wait_for(lambda: server.service.waiting == 1)
        server.server.should_exit = True
        time.sleep(0.3)
        go.set()
        assert answer.result().status == 200
    with pytest.raises(OSError, match=r"refused|reset"):
        server.get("/health")


@pytest.mark.heavy
def test_slow_senders_are_cut_off(estimator):
    with serving(estimator, Limits(timeout=0.3)) as server:
        head = f"POST /flow HTTP/1.1\r\nHost: {server.host}\r\n".encode()
        with socket.create_connection((server.host, server.port)) as line:
            line.sendall(head)  # never ends
            line.settimeout(60)
            assert line.recv(100) == b""
        body = f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: 999\r\n"
        with socket.create_connection((server.host, server.port)) as line:
            line.sendall(head + body.encode() + b"\r\n--")
            line.settimeout(60)
            assert line.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.heavy
def test_slow_readers_are_cut_off(monkeypatch):
    """Their answers take no more memory than is allowed."""
    monkeypatch.setattr("dicl_flow.web.limits.SLOWEST", 2**40)
    images = {name: cv2.imencode(".png", np.zeros((999, 999, 3), np.uint8))[1] for name in FRAMES}
    with serving(StandIn(), Limits(timeout=3.0, queue=1)) as server:
        with socket.create_connection((server.host, server.port)) as line:
            body = form({name: bytes(data) for name, data in images.items()})
            kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
            head = f"POST /flow HTTP/1.1\r\nHost: {server.host}\r\n{kind}"
            line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            line.settimeout(60)
            assert line.recv(12) == b"HTTP/1.1 200"
            assert server.post("/flow", FRAMES).status == 503  # the answer of 8 MB is still there
            wait_for(lambda: server.service.admission.requests == 0)
            assert rest_of(line) < 7_000_000  # of 8; some are in buffers of the system
        assert server.post("/flow", FRAMES).status == 200


def rest_of(line):
    """How many bytes still come before the connection is closed."""
    number = 0
    with suppress(ConnectionError):
        while data := line.recv(2**20):
            number += len(data)
    return number


def test_what_is_not_http_is_told_in_json(server):
    for nonsense in (b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000):
        with socket.create_connection((server.host, server.port)) as line:
            line.sendall(nonsense)
            line.settimeout(60)
            head, _, body = line.recv(10_000).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert json.loads(body) == {"error": "this is not a valid HTTP request"}


# --- description, command ----------------------------------------------------------------------


def test_the_description_is_complete_and_the_page_needs_nothing_else(server):
    document = server.get("/openapi.json").json
    assert document == describe_interface()
    for path, methods in document["paths"].items():
        for method in methods:
            answer = server.ask(method.upper(), path.replace("{id}", "none"))
            assert answer.status not in (404, 405) or "no such video" in answer.error
    page = server.get("/docs").body.decode()
    assert all(path in page for path in document["paths"])
    assert not re.search(r"https?://|<script|style=", page)
    assert server.get("/docs.css").headers["content-type"].startswith("text/css")


def test_numbers_are_lines_of_prometheus(server):
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    line = re.compile(r'(# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [\d.e+]+)')
    lines = answer.body.decode().splitlines()
    assert len(lines) > 30
    assert [text for text in lines if not line.fullmatch(text)] == []


def test_a_port_that_is_taken_is_said():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"`port` {port}: "):
            bind("127.0.0.1", port)


def test_a_limit_must_be_positive(run, tiny_weights, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "150")  # restored afterwards
    code, _, err = run("serve", "-w", tiny_weights, "--queue", "0")
    assert (code, err) == (2, "error: --queue must be positive, got 0\n")


def test_a_token_that_nobody_would_see_is_not_made(run, tiny_weights):
    code, _, err = run("serve", "-w", tiny_weights, "--host", "0.0.0.0", "--quiet")
    assert code == 2
    assert "give --token" in err


@pytest.mark.heavy
def test_the_command_prints_its_address_and_ends_on_a_signal(tiny_weights, tmp_path):
    words = ("-m", "dicl_flow", "serve", "-w", tiny_weights, "--port", "0", "--json")
    with started(*words, "--device", "cpu", TMPDIR=str(tmp_path)) as process:
        told = json.loads(process.stdout.readline())
        assert told["written"] == []
        host, port = re.fullmatch(r"http://(.+):(\d+)/", told["address"]).groups()
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read()) == {"status": "ok"}
        connection.request("GET", "/")  # the page of the explorer, with the packaged frames
        assert b"<title>" in connection.getresponse().read()
        connection.request("GET", "/explore/clips/0")
        assert json.loads(connection.getresponse().read())["name"] == "demo"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
