"""Mutated uploads, wrong headers, slow senders: no crash, no leftover, bounded memory."""

import gc
import socket
import tempfile
import time

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("av", reason="the extra video is not installed")
from clips import KnownMotion
from hostile import StandIn, check_answer, dice, hostile_request, mutated, pictures, sent, videos
from servers import ended, serving

from dicl_flow.web.limits import Limits, resident_bytes

pytestmark = pytest.mark.heavy

LIMITS = Limits(timeout=1.0, max_upload=100_000, max_video=100_000)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("OPENCV_TEMP_PATH", str(tmp_path))
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "1")
    monkeypatch.setattr("dicl_flow.web.jobs.SharedSequence", KnownMotion)
    with serving(StandIn(), LIMITS) as running:
        yield running
        assert running.service.admission.requests == 0
        assert running.service.admission.bytes == 0
        picture = pictures()[0]
        assert running.post("/flow", {"image1": picture, "image2": picture}).status == 200
    assert list(tmp_path.iterdir()) == []


def send_images(server, number, seed):
    """Send hostile requests; return how many got which status."""
    random, seeds, counts = dice(seed), pictures(), {}
    for _ in range(number):
        status, body = sent(server, *hostile_request(seeds, random))
        check_answer(status, body)
        counts[status] = counts.get(status, 0) + 1
    return counts


def send_videos(server, seeds, number, seed):
    """Send mutated videos; return how many were accepted."""
    random, accepted = dice(seed), 0
    for _ in range(number):
        answer = server.post("/video", {"video": mutated(random.choice(seeds), random)})
        assert answer.status in (202, 400, 415), answer.body
        if answer.status == 202:
            accepted += 1
            name = answer.json["id"]
            told = ended(server, name)
            assert "the server failed" not in told.get("error", ""), told
            assert server.ask("DELETE", f"/video/{name}").status == 204
    return accepted


def test_hostile_uploads(server):
    counts = send_images(server, 80, seed=0)
    assert counts[400] > 10
    assert counts[415] > 5


def test_hostile_videos(server, tmp_path_factory):
    assert send_videos(server, videos(tmp_path_factory.mktemp("seeds")), 8, seed=0) > 1


@pytest.mark.slow
def test_campaign(server, tmp_path_factory):
    """Print the numbers of docs/how-to/serving.md."""
    send_images(server, 300, seed=1)
    gc.collect()
    before, start = resident_bytes(), time.monotonic()
    slow = [socket.create_connection((server.host, server.port)) for _ in range(50)]
    for line in slow:
        line.sendall(b"POST /flow HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    counts = send_images(server, 5000, seed=2)
    accepted = send_videos(server, videos(tmp_path_factory.mktemp("seeds")), 500, seed=2)
    for line in slow:
        line.settimeout(5)
        assert line.recv(10) == b""
        line.close()
    grown = resident_bytes() - before
    seconds = time.monotonic() - start
    print(f"\nstatus: {counts}; videos accepted: {accepted} of 500")
    print(f"{seconds:.0f} s, {grown / 2**20:.0f} MiB more")
    assert grown < 100 * 2**20
