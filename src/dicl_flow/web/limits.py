"""What a server accepts at most, what it holds in memory, and how fast clients must be."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import InputError
from ..files import max_size

BYTES_PER_PIXEL = 6
"""Of a decoded frame with 16 bits."""
_MEMORY = 2**30


@dataclass(frozen=True)
class Limits:
    """The limits of a server; pixels of a frame are limited by `files.set_max_size`."""

    queue: int = 64
    """Requests in progress; one more is refused with 503."""
    batch: int = 8
    """Pairs of one size that are estimated together."""
    max_upload: int = 32 * 2**20
    """Bytes of a request with two images."""
    max_video: int = 512 * 2**20
    """Bytes of a request with a video."""
    timeout: float = 60.0
    """Seconds that a sender, a reader or an estimate may take without progress."""
    connections: int = 512
    """Open connections; one more is closed."""
    jobs: int = 8
    """Videos that wait or are estimated."""
    keep: float = 3600.0
    """Seconds after which a finished video is removed."""
    disk: int = 4 * 2**30
    """Bytes of all videos, uploaded and written."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(f"`{field.name}` must be above 0, got {value:g}")


Hold = Callable[[int], None]
"""Counts bytes that a request keeps in memory until it ends; too many are refused with 503."""


class Admission:
    """Counts requests in progress and what they keep in memory; used by the event loop only."""

    def __init__(self, requests: int) -> None:
        self.most = requests
        self.requests = 0
        self.bytes = 0

    @contextmanager
    def enter(self) -> Iterator[Hold]:
        """Count a request until the block ends; refuse it if there are too many."""
        if self.requests >= self.most:
            raise busy()
        held = 0

        def hold(number: int) -> None:
            nonlocal held
            if self.bytes + number > self.most_bytes:
                raise busy()
            self.bytes += number
            held += number

        self.requests += 1
        try:
            yield hold
        finally:
            self.requests -= 1
            self.bytes -= held

    @property
    def most_bytes(self) -> int:
        """Bytes of uploads and frames at a time: room for four of the largest pairs at least."""
        return max(_MEMORY, 4 * 2 * int(max_size() * 1e6) * BYTES_PER_PIXEL)


def busy(message: str = "the server is busy; try again later") -> HTTPException:
    """Return the error for what could be accepted later."""
    return HTTPException(503, message, {"Retry-After": "1"})


SLOWEST = 64 * 1024
"""Bytes per second that a client must reach after the timeout."""
_PIECE = 256 * 1024


class PacedResponse(Response):
    """An answer that is sent as fast as it is read, and given up if that takes too long.

    `kept` is closed at the end: what is counted for the request until then.
    """

    def __init__(
        self, body: bytes, media_type: str, headers: dict[str, str], timeout: float, kept: ExitStack
    ) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._seconds, self._kept = timeout + len(body) / SLOWEST, kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; the server closes the connection if it is not complete."""
        with self._kept:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._send(send)
            except TimeoutError:
                return

    async def _send(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        whole = memoryview(self.body)
        for place in range(0, len(whole), _PIECE):
            piece = bytes(whole[place : place + _PIECE])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
