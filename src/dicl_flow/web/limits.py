"""What a server accepts at most, who may ask, how fast clients must be, and what is counted."""

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import InputError
from ..files import max_size

BYTES_PER_PIXEL = 6
"""Of a decoded frame with 16 bits."""


@dataclass(frozen=True)
class Limits:
    """The limits of a server; pixels of a frame are limited by `files.set_max_size`."""

    queue: int = 64
    """Requests in progress; one more is refused with 503."""
    batch: int | None = None
    """Pairs of one size that are estimated together; None: as the device gains by it."""
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
            if value is not None and not value > 0:
                raise InputError(f"`{field.name}` must be above 0, got {value:g}")


Hold = Callable[[int], None]
"""Counts bytes that a request keeps in memory until it ends; too many are refused with 503."""


class Admission:
    """Counts requests in progress and what they keep in memory; used by the event loop only."""

    def __init__(self, most: int) -> None:
        self.most, self.requests, self.bytes = most, 0, 0

    @contextmanager
    def enter(self) -> Iterator[Hold]:
        """Count a request until the block ends; refuse it if there are too many."""
        if self.requests >= self.most:
            raise busy()
        held = 0

        def hold(number: int) -> None:
            nonlocal held
            # room for four of the largest pairs at least
            if self.bytes + number > max(2**30, 4 * 2 * int(max_size() * 1e6) * BYTES_PER_PIXEL):
                raise busy()
            self.bytes += number
            held += number

        self.requests += 1
        try:
            yield hold
        finally:
            self.requests -= 1
            self.bytes -= held


def busy(message: str = "the server is busy; try again later") -> HTTPException:
    """Return the error for what could be accepted later."""
    return HTTPException(503, message, {"Retry-After": "1"})


SLOWEST = 64 * 1024
"""Bytes per second that a client must reach after the timeout."""
_PIECE = 256 * 1024


class PacedResponse(Response):
    """An answer that is given up if it is read too slowly; `kept` is closed at the end."""

    def __init__(
        self, body: bytes, media_type: str, headers: dict[str, str], timeout: float, kept: ExitStack
    ) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._seconds, self._kept = timeout + len(body) / SLOWEST, kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; the server closes the connection if it is not complete."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        whole = memoryview(self.body)
        with self._kept, suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await send({"type": "http.response.start", **start})
                for place in range(0, len(whole), _PIECE):
                    piece = bytes(whole[place : place + _PIECE])
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})


_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PREFIX = "dicl_flow_"


class Counters:
    """Requests, their seconds, and batches since the start."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._answered, self._seconds = 0, 0.0
        self._pairs, self._batches, self._busy = 0, 0, 0.0

    def batch(self, pairs: int, seconds: float) -> None:
        """Count a batch that was estimated."""
        with self._lock:
            self._pairs += pairs
            self._batches += 1
            self._busy += seconds

    def request(self, method: str, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        with self._lock:
            self._requests[method, endpoint, status] += 1
            self._answered += 1
            self._seconds += seconds
            self._within.update(bound for bound in _BOUNDS if seconds <= bound)

    def text(self, gauges: Mapping[str, tuple[float, str]]) -> str:
        """Return the Prometheus text; `gauges` are other numbers, each with its meaning."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: Mapping[str, tuple[float, str]]) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Answered requests.")
        for (method, endpoint, status), number in sorted(self._requests.items()):
            labels = f'method="{method}",endpoint="{endpoint}",status="{status}"'
            yield f"{_PREFIX}requests_total{{{labels}}} {number}"
        yield from _head("request_seconds", "histogram", "Time until the answer was sent.")
        for bound in _BOUNDS:
            yield f'{_PREFIX}request_seconds_bucket{{le="{bound:g}"}} {self._within[bound]}'
        yield f'{_PREFIX}request_seconds_bucket{{le="+Inf"}} {self._answered}'
        yield f"{_PREFIX}request_seconds_sum {self._seconds:.6f}"
        yield f"{_PREFIX}request_seconds_count {self._answered}"
        counts = {
            "pairs_total": (self._pairs, "Pairs estimated for requests."),
            "batches_total": (self._batches, "Batches of pairs."),
            "estimate_seconds_total": (round(self._busy, 6), "Time spent on batches."),
        }
        for kind, numbers in (("counter", counts), ("gauge", gauges)):
            for name, (value, meaning) in numbers.items():
                yield from _head(name, kind, meaning)
                yield f"{_PREFIX}{name} {value}"


def _head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} {kind}"


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not state it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


_COOKIE = "dicl_flow_token"
_METHODS = ("GET", "HEAD", "POST", "DELETE")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests of strangers before the application sees them, and counts all requests.

    The name in the Host header must be known: a page of another site can let its own name point
    to this machine (DNS rebinding), and then read the answers. Addresses of IP are always known,
    because such a page has a name. Requests that a page of another site sends are refused too.
    """

    def __init__(
        self, app: ASGIApp, counters: Counters, token: str | None, allowed_hosts: Iterable[str]
    ) -> None:
        self.app, self.counters, self.token = app, counters, token
        self.hosts = {"localhost", *(host.lower() for host in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = perf_counter(), 500

        async def protected(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await (self._refusal(scope) or self.app)(scope, receive, protected)
        finally:
            endpoint = getattr(scope.get("endpoint"), "__name__", "none")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.counters.request(method, endpoint, status, perf_counter() - start)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not _is_known(host, self.hosts):
            return error(421, "the server does not answer to this name; see the allowed hosts")
        if _is_foreign(headers, host):
            return error(403, "pages of other sites may not use this server")
        if self.token is None or scope["path"] == "/health":
            return None
        return self._check_token(scope, self.token)

    def _check_token(self, scope: Scope, token: str) -> Response | None:
        request = Request(scope)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(given.strip(), token):
            return None
        if _equal(request.cookies.get(_COOKIE, ""), token):
            return None
        if request.method == "GET" and _equal(request.query_params.get("token", ""), token):
            # the address that was printed: the token moves from there into a cookie
            answer = RedirectResponse("/" + scope["path"].lstrip("/"), 303)
            answer.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
            return answer
        message = "give the token that the server printed: Authorization: Bearer TOKEN"
        return error(401, message, {"WWW-Authenticate": "Bearer"})


def error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the answer to what cannot be done: one sentence."""
    return JSONResponse({"error": message}, status, headers)


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token that requests must have; a server that others can reach needs one."""
    if token is None and not is_loopback(host):
        return secrets.token_urlsafe(24)
    if token is not None and not (len(token) >= 16 and token.isascii() and token.isprintable()):
        raise InputError("`token` must have at least 16 characters, all of them ASCII")
    return token


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach a server on `host`."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_known(host: str, names: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_foreign(headers: Headers, host: str) -> bool:
    """Whether a page of another site sent the request; a link on one may be followed."""
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        return True
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    return site in ("cross-site", "same-site") and mode != "navigate"


def _equal(given: str, token: str) -> bool:
    return compare_digest(given.encode(), token.encode())
