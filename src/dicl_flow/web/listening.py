"""Runs an application on a socket until it is asked to stop."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import InputError
from .limits import Limits


def run_server(
    app: ASGIApp, host: str, port: int, limits: Limits, announce: Callable[[str], None]
) -> None:
    """Answer requests until SIGINT or SIGTERM; what was accepted is finished first.

    Port 0 is any free one. `announce` gets the address when requests are answered.
    """
    with bind(host, port) as listening:
        make_server(app, limits, lambda: announce(address_of(listening))).run([listening])


def make_server(app: ASGIApp, limits: Limits, on_start: Callable[[], None]) -> "Server":
    """Return a server, which runs until its `should_exit` is set."""
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
    return Server(config, on_start)


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


class Server(uvicorn.Server):
    """A server that reports when it has started, and ends without raising the signal again."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second Ctrl-C does not wait for requests."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


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
                self.transport.write(_bad_request("this is not a valid HTTP request"))
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


def _bad_request(message: str) -> bytes:
    body = json.dumps({"error": message}).encode()
    head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
