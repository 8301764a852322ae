"""The application: which address is answered by what; and the server that runs it on a socket."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from types import FrameType

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import InputError
from . import openapi
from .jobs import VIDEO_ROUTES, Jobs, jobs_of
from .limits import Guard, Limits, PacedResponse, error, resident_bytes
from .requests import FORMATS, read_frames, read_wanted
from .service import FlowService, service_of

_SENTENCES = {  # what Starlette says, and what we say
    "Not Found": "there is nothing at this address; /docs lists what there is",
    "Method Not Allowed": "this address takes other methods; /docs lists them",
}


def create_app(
    service: FlowService,
    *,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    pages: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """Return the application of a server, which starts and closes the service.

    `allowed_hosts` are names of the server, besides localhost and addresses.
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
        exception_handlers=dict.fromkeys(
            (HTTPException, InputError, ClientDisconnect, Exception), _describe
        ),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # one address for each thing
    app.state.service, app.state.jobs = service, jobs
    return Guard(app, service.counters, token, allowed_hosts)


async def flow(request: Request) -> Response:
    """Estimate the flow between two uploaded images."""
    service, wanted = service_of(request), read_wanted(request)
    with ExitStack() as admitted:
        hold = admitted.enter_context(service.admission.enter())
        frames = await read_frames(request, hold)
        future = service.estimate(*frames, backward=wanted.backward or wanted.occlusion)
        result = await service.wait(request, future)
        body = await service.in_thread(wanted.encode, result)
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
    counts = jobs.counts()
    gauges = {
        "requests_in_progress": (service.admission.requests, "Requests being read or estimated."),
        "held_bytes": (service.admission.bytes, "Uploads and frames of these requests."),
        "waiting": (service.waiting, "Pairs and calls that wait for the estimator."),
        **{f"videos_{state}": (n, f"Videos that are {state}.") for state, n in counts.items()},
        "videos_bytes": (jobs.used(), "Disk space of videos."),
        "resident_bytes": (resident_bytes(), "Memory of the process."),
    }
    return PlainTextResponse(service.counters.text(gauges), media_type="text/plain; version=0.0.4")


async def _describe(request: Request, problem: Exception) -> Response:
    """Answer that a request failed."""
    if isinstance(problem, HTTPException):
        told = _SENTENCES.get(problem.detail, problem.detail)
        return error(problem.status_code, told, dict(problem.headers or {}))
    if isinstance(problem, InputError):
        return error(400, " ".join(str(problem).split()))
    if isinstance(problem, ClientDisconnect):
        return error(499, "the sender closed the connection")
    return error(500, "the server failed; its log has the reason")


def run_server(
    app: ASGIApp, host: str, port: int, limits: Limits, announce: Callable[[str], None]
) -> None:
    """Answer requests until SIGINT or SIGTERM; what was accepted is finished first.

    Port 0 is any free one. `announce` gets the address when requests are answered.
    """
    with bind(host, port) as listening:
        make_server(app, limits, lambda: announce(address_of(listening))).run([listening])


def make_server(app: ASGIApp, limits: Limits, on_start: Callable[[], None]) -> uvicorn.Server:
    """Return a server, which runs until its `should_exit` is set."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Stop, without raising the signal again; a second Ctrl-C waits for no requests."""
            self.force_exit = self.should_exit and sig == signal.SIGINT
            self.should_exit = True

    config = uvicorn.Config(
        app,
        http=protocol_with(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    return Server(config)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; a port that is taken is an `InputError`."""
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listening = socket.create_server(address[:2], family=family, backlog=256)
        # else the body of an answer waits 40 ms for the client to acknowledge its head
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise InputError(f"cannot listen on `host` {host}, `port` {port}: {reason}") from None


def address_of(listening: socket.socket) -> str:
    """Return the address that a browser opens."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


_BAD_BODY = b'{"error": "this is not a valid HTTP request"}'
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BAD_BODY), _BAD_BODY)
)


def protocol_with(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's protocol with a limit of connections and of time without progress."""

    class Protocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _unsent = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.abort()
            self._expect_progress()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before:  # the application has its own limits
                self._expect_nothing()

        def on_response_complete(self) -> None:
            self._expect_progress()
            super().on_response_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect_progress()

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.cycle and not self.cycle.response_complete:
                self._expect_nothing()

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.write(_BAD_REQUEST)
            self.transport.close()

        def _expect_progress(self) -> None:
            """Within the timeout, a whole head must arrive, or a part of the answer leave."""
            self._expect_nothing()
            self._unsent = self.transport.get_write_buffer_size()
            self._deadline = self.loop.call_later(limits.timeout, self._check_progress)

        def _expect_nothing(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()

        def _check_progress(self) -> None:
            if 0 < self.transport.get_write_buffer_size() < self._unsent:
                self._expect_progress()
            else:
                self.transport.abort()

    return Protocol
