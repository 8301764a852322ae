"""Videos on the server: upload, progress, result and limits; no file stays."""

import os
import shutil
import tempfile
import time
from importlib import import_module

import numpy as np
import pytest
from conftest import SMALL

from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("av", reason="the extra video is not installed")
from clips import read_video, write_video
from servers import busy_estimator, ended, serving, wait_for

from dicl_flow.web import jobs
from dicl_flow.web.limits import Limits
from dicl_flow.web.service import FlowService

pytestmark = pytest.mark.heavy

FRAMES = [np.full((32, 48, 3), 20 * number, np.uint8) for number in range(4)]


@pytest.fixture(scope="module")
def estimator():
    return FlowEstimator(build(SMALL), "cpu", "fp32", "plain")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return write_video(path, FRAMES, codec="libx264", pix_fmt="yuv420p").read_bytes()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def server(estimator, place):
    with serving(estimator) as running:
        yield running
    assert list(place.iterdir()) == []


def files_in(place):
    return [path for path in place.rglob("*") if path.is_file()]


def test_a_video_from_upload_to_removal(server, clip, place, tmp_path_factory):
    answer = server.post("/video?show=frame,wheel", {"video": clip})
    assert (answer.status, answer.json["state"]) == (202, "waiting")
    name = answer.json["id"]
    assert answer.headers["location"] == f"/video/{name}"
    told = ended(server, name)
    assert (told["state"], told["done"], told["total"]) == ("done", 3, 3)
    assert 3590 < told["seconds_left"] <= 3600
    result = server.get(told["result"])
    assert result.headers["content-type"] == "video/mp4"
    path = tmp_path_factory.mktemp("result") / "result.mp4"
    path.write_bytes(result.body)
    assert [picture.shape for picture, _ in read_video(path)] == [(32, 96, 3)] * 3
    assert [found.name for found in files_in(place)] == ["flow.mp4"]  # the upload is gone
    assert server.ask("DELETE", f"/video/{name}").status == 204
    assert server.get(f"/video/{name}").status == 404
    assert files_in(place) == []


def test_the_flows_as_an_array(server, clip, estimator):
    name = server.post("/video?format=npy", {"video": clip}).json["id"]
    assert ended(server, name)["state"] == "done"
    result = server.get(f"/video/{name}/result").body
    assert result.startswith(b"\x93NUMPY")


WRONG = [
    ("?format=exe", b"", 400, "unknown format 'exe'"),
    ("?cuts=maybe", b"", 400, "unknown cuts 'maybe'"),
    ("?show=nothing", None, 400, "unknown `show` 'nothing'"),
    ("", b"#EXTM3U\n/etc/passwd", 415, "video is not an MP4"),
    ("", b"ffconcat version 1.0\nfile /etc/passwd", 415, "video is not an MP4"),
    ("", b"<MPDftyp xmlns='urn:mpeg:dash:schema:mpd:2011'>", 415, "video is not an MP4"),
    ("", b"\0\0\0\x18ftypmp42" + bytes(99), 400, "the video cannot be decoded"),
    ("", b"", 415, "video is not an MP4"),
]


@pytest.mark.parametrize(("query", "data", "status", "sentence"), WRONG)
def test_what_is_no_video_is_refused_at_once(server, clip, place, query, data, status, sentence):
    answer = server.post(f"/video{query}", {"video": clip if data is None else data})
    assert (answer.status, answer.error.startswith(sentence)) == (status, True), answer.error
    assert str(place) not in answer.error
    assert files_in(place) == []


def test_a_video_that_cannot_be_estimated_fails(server, tmp_path_factory):
    path = tmp_path_factory.mktemp("short") / "clip.mkv"
    name = server.post("/video", {"video": write_video(path, FRAMES[:1]).read_bytes()}).json["id"]
    told = ended(server, name)
    assert (told["state"], told["error"]) == ("failed", "a flow needs at least two frames")
    assert server.get(f"/video/{name}/result").status == 409


def test_a_thin_video_counts_as_the_network_sees_it(server, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "0.01")
    path, thin = tmp_path_factory.mktemp("thin") / "clip.mkv", np.zeros((2, 4000, 3), np.uint8)
    video = write_video(path, [thin] * 2, codec="ffv1", pix_fmt="bgr0").read_bytes()
    told = ended(server, server.post("/video", {"video": video}).json["id"])
    sentence = "the video would be padded from 4000x2 to"
    assert (told["state"], told["error"][: len(sentence)]) == ("failed", sentence)


def test_a_running_video_can_be_removed(server, clip, place):
    with busy_estimator(server):
        name = server.post("/video", {"video": clip}).json["id"]
        assert server.get(f"/video/{name}/result").status == 409
        assert server.ask("DELETE", f"/video/{name}").status == 204
    wait_for(lambda: not files_in(place))


@pytest.fixture
def empty_job(estimator, place):
    """A job without an upload, and the jobs that it belongs to."""
    started = jobs.Jobs(FlowService(estimator))
    started.start()
    yield started, started.create("npy", None, "estimate")
    started.close()


@pytest.mark.parametrize("within", [False, True])
def test_space_is_counted_while_folders_are_removed(empty_job, monkeypatch, within):
    """Another request removes a video right before its folder, or one in it, is listed."""
    started, job = empty_job
    parts = job.folder / "flow.npy.parts"
    parts.mkdir()
    (parts / "0").write_bytes(bytes(10))
    before = started.used()
    assert before >= 10
    scandir, last = os.scandir, parts if within else job.folder

    def scan(path):
        if str(path) == str(last):
            monkeypatch.setattr(os, "scandir", scandir)
            shutil.rmtree(job.folder)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert started.used() < before
    assert not job.folder.exists()


def test_a_result_stays_while_it_is_read(empty_job):
    started, job = empty_job
    job.result.write_bytes(b"flow")
    with started.reading(job):
        started.remove(job)
        assert job.result.read_bytes() == b"flow"
    assert not job.folder.exists()


def test_a_result_that_was_just_removed_is_not_found(server, clip, monkeypatch):
    name, find = server.post("/video?format=npy", {"video": clip}).json["id"], jobs._find
    assert ended(server, name)["state"] == "done"

    def find_and_remove(request):
        job = find(request)
        jobs.jobs_of(request).remove(job)
        return job

    monkeypatch.setattr(jobs, "_find", find_and_remove)
    assert server.get(f"/video/{name}/result").status == 404


def test_the_end_stops_videos_and_removes_their_files(estimator, clip, place):
    with serving(estimator) as server, busy_estimator(server):
        for _ in range(2):
            assert server.post("/video", {"video": clip}).status == 202
        assert files_in(place)
    assert list(place.iterdir()) == []


def test_videos_are_limited_in_number_time_bytes_and_disk(estimator, clip, place, monkeypatch):
    limits = Limits(jobs=1, keep=1000, disk=len(clip) + 200, max_video=len(clip) + 500)
    with serving(estimator, limits) as server:
        with busy_estimator(server):
            name = server.post("/video", {"video": clip}).json["id"]
            second = server.post("/video", {"video": clip})
            assert (second.status, second.headers["retry-after"]) == (503, "1")
        assert ended(server, name)["error"] == "the disk space of the server for videos is full"
        assert server.post("/video", {"video": clip + bytes(250)}).status == 507
        assert server.post("/video", {"video": clip + bytes(999)}).status == 413
        monkeypatch.setattr(jobs, "monotonic", lambda: time.monotonic() + 1000)
        assert server.get(f"/video/{name}").status == 404
        assert files_in(place) == []


def test_requests_and_a_video_share_the_estimator(server, clip):
    """A video does not keep requests waiting until it ends."""
    with busy_estimator(server):
        name = server.post("/video", {"video": clip}).json["id"]
        between = server.service.call(lambda: server.get(f"/video/{name}").json["done"])
    assert between.result(60) < 3
    assert ended(server, name)["state"] == "done"


def test_a_frame_that_grows_later_is_not_decoded(monkeypatch, tmp_path):
    """The size of a stream can change after its head was checked."""
    reading = import_module("dicl_flow.data.frames")
    path = write_video(tmp_path / "clip.mp4", FRAMES, codec="libx264", pix_fmt="yuv420p")
    monkeypatch.setattr(reading, "check_size", lambda width, height: None)
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "0.0005")
    with pytest.raises(InputError, match="cannot be decoded"), reading.open_video(path) as opened:
        next(opened.decode(video=0))
