"""The application: which address is answered by what, and what errors say."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ..errors import InputError
from . import openapi
from .counters import Counted, resident_bytes
from .jobs import VIDEO_ROUTES, Jobs, jobs_of
from .limits import PacedResponse
from .requests import FORMATS, read_frames, read_wanted
from .security import Guard, error
from .service import FlowService, service_of

_SENTENCES = {
    "Not Found": "there is nothing at this address; /docs lists what there is",
    "Method Not Allowed": "this address takes other methods; /docs lists them",
}
"""What Starlette says, and what we say."""


def create_app(
    service: FlowService,
    *,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    pages: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """Return the application of a server, which starts and closes the service.

    With a `token`, every request must have it. `allowed_hosts` are names of the server, besides
    localhost and addresses. `pages` are further routes.
    """
    jobs = Jobs(service)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        jobs.start()
        try:
            yield
        finally:
            jobs.close()
            service.close()

    app = Starlette(
        routes=[
            Route("/flow", flow, methods=["POST"]),
            *VIDEO_ROUTES,
            *openapi.ROUTES,
            Route("/health", health),
            Route("/metrics", metrics),
            *pages,
        ],
        exception_handlers={
            HTTPException: _told,
            InputError: _refused,
            ClientDisconnect: _left,
            Exception: _failed,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # one address for each thing
    app.state.service, app.state.jobs = service, jobs
    return Counted(Guard(app, token, allowed_hosts), service.counters)


async def flow(request: Request) -> Response:
    """Estimate the flow between two uploaded images."""
    service, wanted = service_of(request), read_wanted(request)
    with ExitStack() as admitted:
        hold = admitted.enter_context(service.admission.enter())
        frames = await read_frames(request, hold)
        future = service.estimate(*frames, backward=wanted.both_ways)
        result = await service.wait(request, future)
        body = await service.aside(wanted.answer, result)
        kept = admitted.pop_all()
    form = FORMATS[wanted.format]
    headers = {"Content-Disposition": f'attachment; filename="{form.file_name}"'}
    return PacedResponse(body, form.media_type, headers, service.limits.timeout, kept)


async def health(request: Request) -> Response:
    """Answer that the server runs."""
    return JSONResponse({"status": "ok"})


async def metrics(request: Request) -> Response:
    """Return the numbers of the server for Prometheus."""
    service, jobs = service_of(request), jobs_of(request)
    gauges = {
        "requests_in_progress": (service.admission.requests, "Requests being read or estimated."),
        "held_bytes": (service.admission.bytes, "Uploads and frames of these requests."),
        "waiting": (service.waiting, "Pairs and calls that wait for the estimator."),
        **{
            f"videos_{state}": (number, f"Videos that are {state}.")
            for state, number in jobs.counts().items()
        },
        "videos_bytes": (jobs.used(), "Disk space of videos."),
        "resident_bytes": (resident_bytes(), "Memory of the process."),
    }
    return PlainTextResponse(service.counters.text(gauges), media_type="text/plain; version=0.0.4")


async def _told(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    told = _SENTENCES.get(problem.detail, problem.detail)
    return error(problem.status_code, told, dict(problem.headers or {}))


async def _refused(request: Request, problem: Exception) -> Response:
    return error(400, " ".join(str(problem).split()))


async def _left(request: Request, problem: Exception) -> Response:
    return error(499, "the sender closed the connection")


async def _failed(request: Request, problem: Exception) -> Response:
    return error(500, "the server failed; its log has the reason")
