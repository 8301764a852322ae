"""Videos as jobs: one at a time is estimated, results are kept for a while; what is answered."""

import logging
import os
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Condition, Thread
from time import monotonic
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from torch import Tensor

from ..errors import InputError, check_name
from ..estimation.estimator import FlowSequence
from ..estimation.inputs import Image
from ..files import Array
from ..video import CUTS, STILL_RATE, Checkpoint, Outputs, Selection, run, video_source
from .limits import busy
from .requests import Write, read_form, video_container
from .service import FlowService, check_seen, service_of

log = logging.getLogger(__name__)

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
_SWEEP = 10.0  # seconds between looks for videos that are too old


class Job:
    """A video, what to make of it, its progress and its result, in a folder removed with it."""

    def __init__(self, place: Path, format: str, show: str | None, cuts: str) -> None:
        self.format, self.show, self.cuts = format, show, cuts  # see `Outputs` and `CUTS`
        self.container: str | None = None  # FFmpeg's name of the file format of the upload
        self.id = secrets.token_urlsafe(12)
        self.folder = place / self.id
        self.folder.mkdir()
        self.source, self.result = self.folder / "video", self.folder / f"flow.{format}"
        self.state, self.error, self.removed, self.done = WAITING, "", False, 0
        self.readers = 0
        """How many requests read the result."""
        self.total: int | None = None
        self.ended: float | None = None

    def outputs(self) -> Outputs:
        """Return what to write; refuse what makes no sense."""
        return Outputs((self.result,), show=self.show)

    def described(self, keep: float) -> dict[str, object]:
        """Return what is answered about the job."""
        known = {"id": self.id, "state": self.state, "done": self.done, "total": self.total}
        if self.error:
            known["error"] = self.error
        if self.state == DONE:
            known["result"] = f"/video/{self.id}/result"
        if self.ended is not None:
            known["seconds_left"] = max(0, round(self.ended + keep - monotonic()))
        return known


class Jobs:
    """The videos of a server."""

    def __init__(self, service: FlowService) -> None:
        self._service, self._limits = service, service.limits
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._changed, self._closed = Condition(), False
        self._worker = Thread(target=self._work, name="videos", daemon=True)
        self._place: Path | None = None

    def start(self) -> None:
        """Start the thread that works on videos."""
        self._place = Path(tempfile.mkdtemp(prefix="dicl-flow-serve-"))
        self._worker.start()

    def close(self) -> None:
        """Stop, and remove all files: nobody could ask for a result any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._place is not None:
            self._worker.join()
            shutil.rmtree(self._place, ignore_errors=True)

    def create(self, format: str, show: str | None, cuts: str) -> Job:
        """Return a job with an empty folder; refuse it if there are too many."""
        self.sweep()
        with self._changed:
            active = sum(job.state in (WAITING, RUNNING) for job in self._jobs.values())
            if self._closed or self._place is None or active >= self._limits.jobs:
                raise busy("too many videos are waiting; try again later")
            job = Job(self._place, format, show, cuts)
            self._jobs[job.id] = job
            return job

    def submit(self, job: Job) -> None:
        """Let a job with an uploaded video wait for its turn."""
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def find(self, name: str) -> Job:
        """Return the job with this id."""
        self.sweep()
        job = self._jobs.get(name)
        if job is None:
            raise _gone()
        return job

    @contextmanager
    def reading(self, job: Job) -> Iterator[None]:
        """Keep the files of a job while its result is read, even if it is removed."""
        with self._changed:
            if job.removed:
                raise _gone()
            job.readers += 1
        try:
            yield
        finally:
            with self._changed:
                job.readers -= 1
            self._remove_files(job)

    def remove(self, job: Job) -> None:
        """Stop a job and remove its files."""
        with self._changed:
            self._jobs.pop(job.id, None)
            job.removed = True
            if job in self._waiting:
                self._waiting.remove(job)
        self._remove_files(job)

    def _remove_files(self, job: Job) -> None:
        """Remove the files of a removed job; whoever still uses them does so afterwards."""
        with self._changed:
            used = not job.removed or job.readers or job.state == RUNNING
        if not used:
            shutil.rmtree(job.folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove the jobs whose time is over."""
        oldest = monotonic() - self._limits.keep
        for job in list(self._jobs.values()):
            if job.ended is not None and job.ended < oldest:
                self.remove(job)

    def used(self) -> int:
        """Bytes on disk. Other threads write and remove folders and files meanwhile."""
        size = 0
        for job in list(self._jobs.values()):
            for folder, *names in os.walk(job.folder):  # no error for one that is gone
                for name in chain(*names):
                    with suppress(OSError):  # just removed
                        size += Path(folder, name).stat().st_size
        return size

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        states = [job.state for job in list(self._jobs.values())]
        return {state: states.count(state) for state in (WAITING, RUNNING, DONE, FAILED)}

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed, timeout=_SWEEP)
                if self._closed:
                    return
                job = self._waiting.popleft() if self._waiting else None
                if job is not None:
                    job.state = RUNNING
            if job is None:
                self.sweep()
            else:
                self._finish(job)

    def _finish(self, job: Job) -> None:
        try:
            self._estimate(job)
            state, error = DONE, ""
        except InputError as problem:
            state, error = FAILED, told(problem, job)
        except Exception:
            log.exception("a video failed")
            state, error = FAILED, "the server failed; its log has the reason"
        with self._changed:
            job.state, job.error, job.ended = state, error, monotonic()
        job.source.unlink(missing_ok=True)
        self._remove_files(job)

    def _estimate(self, job: Job) -> None:
        def note(done: int, total: int | None) -> None:
            job.done, job.total = done, total

        source, outputs = video_source(job.source, job.container), job.outputs()
        sequence = SharedSequence(self._service, backward=outputs.needs_backward)
        with Checkpoint(job.result, {}) as checkpoint:
            writers = outputs.writers(checkpoint.folder, source.rate or STILL_RATE)
            what = (source, Selection(), sequence, writers, checkpoint)
            run(*what, lambda flow: self._may_continue(job), cuts=job.cuts, on_progress=note)

    def _may_continue(self, job: Job) -> bool:
        """Whether to continue with the next frame."""
        self.sweep()
        if self.used() > self._limits.disk:
            raise InputError("the disk space of the server for videos is full")
        return not (self._closed or job.removed)


def _gone() -> HTTPException:
    return HTTPException(404, "there is no such video, or its time is over")


def told(problem: InputError, job: Job) -> str:
    """Return the message of an error without paths of the server."""
    text = str(problem).replace(str(job.source), "the video").replace(f"{job.folder}/", "")
    return " ".join(text.split())


class SharedSequence(FlowSequence):
    """A sequence that estimates in the thread of the service, alternating with requests."""

    def __init__(self, service: FlowService, *, backward: bool = False) -> None:
        super().__init__(service.estimator, backward=backward)
        self._service = service

    def prepare(self, frame: Image) -> Tensor:
        """See `FlowSequence`."""
        check_seen(self.estimator, cast(Array, frame).shape[:2], "the video")
        return self._service.call(partial(super().prepare, frame)).result()

    def match(self, before: Tensor, after: Tensor) -> Tensor:
        """See `FlowSequence`."""
        return self._service.call(partial(super().match, before, after)).result()

    def at_once(self, size: tuple[int, int]) -> int:
        """One: there is one thread for all requests."""
        return 1

    def fresh(self) -> FlowSequence:
        """Another sequence, for frames of another size."""
        return SharedSequence(self._service, backward=self.backward)


VIDEO_FORMATS = {
    "mp4": "video/mp4",
    "webm": "video/webm",
    "gif": "image/gif",
    "npy": "application/x-npy",
}
"""What a video is turned into: the media type by the ending of the file."""


async def create_video(request: Request) -> Response:
    """Take a video that waits for its turn."""
    service, jobs, query = service_of(request), jobs_of(request), request.query_params
    format, cuts = query.get("format", "mp4"), query.get("cuts", "estimate")
    check_name("format", format, VIDEO_FORMATS)
    check_name("cuts", cuts, CUTS)
    with service.admission.enter():
        job = jobs.create(format, query.get("show"), cuts)
        try:
            await _receive(request, job)
            await service.in_thread(_check, job)
        except BaseException:
            jobs.remove(job)
            raise
    jobs.submit(job)
    described = job.described(service.limits.keep)
    return JSONResponse(described, 202, {"Location": f"/video/{job.id}"})


async def video(request: Request) -> Response:
    """Return the progress of a video."""
    return JSONResponse(_find(request).described(service_of(request).limits.keep))


async def video_result(request: Request) -> Response:
    """Return what was made of a video."""
    job = _find(request)
    if job.state != DONE:
        raise HTTPException(409, f"the video is {job.state}; ask again when it is done")
    return _Result(jobs_of(request), job)


class _Result(FileResponse):
    """The result of a video; its file stays until it is sent."""

    def __init__(self, jobs: Jobs, job: Job) -> None:
        kind = VIDEO_FORMATS[job.format]
        super().__init__(job.result, media_type=kind, filename=job.result.name)
        self._jobs, self._job = jobs, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or answer that the video has just been removed."""
        with self._jobs.reading(self._job):
            await super().__call__(scope, receive, send)


async def delete_video(request: Request) -> Response:
    """Stop a video and remove its files."""
    await service_of(request).in_thread(jobs_of(request).remove, _find(request))
    return Response(status_code=204)


VIDEO_ROUTES = [
    Route("/video", create_video, methods=["POST"]),
    Route("/video/{id}", video, methods=["GET"]),
    Route("/video/{id}", delete_video, methods=["DELETE"]),
    Route("/video/{id}/result", video_result, methods=["GET"]),
]


def jobs_of(request: Request) -> Jobs:
    """Return the videos of the application that a request is for."""
    return request.app.state.jobs


def _find(request: Request) -> Job:
    return jobs_of(request).find(request.path_params["id"])


async def _receive(request: Request, job: Job) -> None:
    """Store the upload in the folder of the job."""
    limits, jobs = service_of(request).limits, jobs_of(request)
    with job.source.open("wb") as file:

        def write(data: bytes) -> None:
            if jobs.used() + len(data) > limits.disk:
                raise HTTPException(507, "the disk space for videos is full; delete some")
            file.write(data)

        def write_to(name: str) -> Write:
            if name != "video" or file.tell():
                raise HTTPException(400, f"expected one field, video, got {name!r}")
            return write

        await read_form(request, write_to, limits.max_video)


def _check(job: Job) -> None:
    """Refuse, before it waits for its turn, what cannot be estimated or written."""
    job.container = video_container(job.source)
    try:
        job.outputs()
        video_source(job.source, job.container)
    except InputError as error:
        raise HTTPException(400, told(error, job)) from None
