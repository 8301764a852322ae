"""Numbers of a running server, as Prometheus reads them."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        counts: dict[str, tuple[float, str]] = {
            "pairs_total": (self._pairs, "Pairs estimated for requests."),
            "batches_total": (self._batches, "Batches of pairs."),
            "estimate_seconds_total": (round(self._busy, 6), "Time spent on batches."),
        }
        for name, (total, meaning) in counts.items():
            yield from _head(name, "counter", meaning)
            yield f"{_PREFIX}{name} {total}"
        for name, (value, meaning) in gauges.items():
            yield from _head(name, "gauge", meaning)
            yield f"{_PREFIX}{name} {value}"


def _head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} {kind}"


class Counted:
    """Counts the requests that pass through to an application."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self.app, self.counters = app, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            endpoint = getattr(scope.get("endpoint"), "__name__", "none")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.counters.request(method, endpoint, status, perf_counter() - start)


_METHODS = ("GET", "HEAD", "POST", "DELETE")


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not state it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
