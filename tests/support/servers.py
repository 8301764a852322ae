"""A server in a thread of the test, and a client that uses nothing but sockets."""

import http.client
import json
import time
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple
from urllib.parse import urlsplit

from dicl_flow.web.app import address_of, bind, create_app, make_server
from dicl_flow.web.limits import Limits
from dicl_flow.web.service import FlowService

BOUNDARY = "a-line-between-parts"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The sentence of an error."""
        return self.json["error"]


class Running:
    """A server that runs, and its parts."""

    def __init__(self, service, server, host, port):
        self.service, self.server = service, server
        self.host, self.port = host, port

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, files, headers=None):
        """Send a form; `files` has the bytes by field name."""
        kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        return self.ask("POST", path, form(files), kind | (headers or {}))


def wait_for(condition):
    """Wait until a condition is true, and return it."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def ended(server, name):
    """The description of a video that does not wait or run any more."""

    def told():
        answer = server.get(f"/video/{name}").json
        return None if answer["state"] in ("waiting", "running") else answer

    return wait_for(told)


def form(files):
    """The body of a form."""
    parts = []
    for name, data in files.items():
        head = f'Content-Disposition: form-data; name="{name}"; filename="{name}.bin"'
        parts += [f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode(), data, b"\r\n"]
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


@contextmanager
def serving(estimator, limits=None, **options):
    """Run a server on a free port of loopback."""
    service = FlowService(estimator, limits or Limits())
    ready = Event()
    with bind("127.0.0.1", 0) as listening:
        server = make_server(create_app(service, **options), service.limits, ready.set)
        thread = Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            assert ready.wait(60)
            address = urlsplit(address_of(listening))
            yield Running(service, server, address.hostname, address.port)
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


@contextmanager
def busy_estimator(server):
    """Keep the estimator busy until the event is set, at the latest at the end of the block."""
    started, go = Event(), Event()

    def work():
        started.set()
        go.wait(60)

    server.service.call(work)
    assert started.wait(60)
    try:
        yield go
    finally:
        go.set()
