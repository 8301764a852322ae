"""The page of a live view: the newest picture and its numbers, for programs of this machine.

Only the standard library is used, because the extra `web` is not needed to watch a camera.
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from ..errors import InputError

_STATIC = Path(__file__).with_name("live")
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/live.js": ("live.js", "text/javascript; charset=utf-8"),
    "/live.css": ("live.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; img-src 'self'; script-src 'self'; style-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NAMES = ("127.0.0.1", "localhost")
_BETWEEN = "a-picture-follows"
_SLOWEST = 10.0  # seconds that a reader may take for a picture


class View:
    """The newest picture, for any number of readers; a slow one misses pictures."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self.state = state
        self._changed, self._picture, self._number = Condition(), b"", 0
        self._closed = False

    def put(self, picture: bytes) -> None:
        """Show a picture, a JPEG file."""
        with self._changed:
            self._picture, self._number = picture, self._number + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let all readers end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def pictures(self) -> Iterator[bytes]:
        """Yield the newest picture whenever there is a newer one."""
        seen = 0
        while True:
            with self._changed:
                while not self._closed and self._number == seen:
                    self._changed.wait()
                if self._closed:
                    return
                picture, seen = self._picture, self._number
            yield picture


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "dicl-flow", ""
    timeout = _SLOWEST
    server: "_Server"

    def do_GET(self) -> None:
        """Answer with the page, the pictures or the numbers."""
        # a page of another site can let its own name point here (DNS rebinding)
        if self.headers.get("Host", "").partition(":")[0].lower() not in _NAMES:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"unknown host\n", "text/plain")
        elif self.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            self._send(HTTPStatus.FORBIDDEN, b"pages of other sites may not use it\n", "text/plain")
        elif self.path == "/pictures":
            self._send_pictures()
        elif self.path == "/state":
            body = json.dumps(dict(self.server.view.state())).encode()
            self._send(HTTPStatus.OK, body, "application/json")
        elif self.path in _FILES:
            name, kind = _FILES[self.path]
            self._send(HTTPStatus.OK, (_STATIC / name).read_bytes(), kind)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"nothing is here\n", "text/plain")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._begin(status, kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **_HEADERS}.items():
            self.send_header(name, value)

    def _send_pictures(self) -> None:
        """Send a picture after the other, as browsers show them in an image."""
        self.close_connection = True
        self._begin(HTTPStatus.OK, f"multipart/x-mixed-replace; boundary={_BETWEEN}")
        self.end_headers()
        # after each picture at once: Chromium shows it when it has the header of the next one
        between = f"\r\n--{_BETWEEN}\r\nContent-Type: image/jpeg\r\n\r\n".encode()
        with suppress(OSError):  # the reader left
            self.wfile.write(between)
            for picture in self.server.view.pictures():
                self.wfile.write(picture + between)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    view: View

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a reader that leaves is no error."""


@contextmanager
def serving_view(view: View, port: int) -> Iterator[str]:
    """Serve a view on a port of loopback, 0 for a free one; yield the address of its page."""
    try:
        server = _Server(("127.0.0.1", port), _Handler)
    except OSError as error:
        raise InputError(f"cannot listen on `port` {port}: {error.strerror}") from None
    server.view = view
    server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        view.close()
        server.shutdown()
        server.server_close()
        thread.join()
