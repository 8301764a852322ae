"""Decoders that do what none should, for tests and campaigns of the fence.

Behind the fence, `cv2.imdecode` also misbehaves for an image that holds a word of `FAULTS`.
"""

import ctypes
import os
import signal
import socket
import stat
import time
from pathlib import Path

import cv2
import numpy as np

from dicl_flow.fence import fenced, fenced_stream, readers

MOST = 2**20
_SEEN = []


def crash():
    """Read address 0."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def hang():
    """Wait for ever."""
    while True:
        time.sleep(1)


def spin():
    """Compute for ever."""
    while True:
        pass


def eat():
    """Take more memory than any machine has."""
    return np.ones(2**40, np.uint8)


def connect():
    """Connect to a port of this machine."""
    with socket.socket() as line:
        line.settimeout(5)
        line.connect(("127.0.0.1", int(_SEEN[-1])))


def write():
    """Write a file."""
    Path(_SEEN[-1]).write_text("x")


def read():
    """Read a file."""
    return Path(_SEEN[-1]).read_text()


def execute():
    """Start another program."""
    os.execv("/bin/true", ["true"])


def fork():
    """Start a process."""
    return os.fork()


def kill():
    """Signal the process above."""
    os.kill(os.getppid(), signal.SIGTERM)


def lie():
    """Announce an answer of an exabyte."""
    places = [place for place in range(3, 16) if _is_socket(place)]
    os.write(places[-1], b"\0\0\0\2" + b"\x0f" + bytes(7) + b"{}")


def _is_socket(place):
    try:
        return stat.S_ISSOCK(os.fstat(place).st_mode)
    except OSError:
        return False


def token():
    """Return a secret of the environment."""
    return os.environ.get("DICL_FLOW_TOKEN", "none")


def remember():
    """Return how many requests this process has seen."""
    return len(_SEEN)


FAULTS = {f.__name__: f for f in (crash, hang, spin, eat, connect, write, read, execute, fork)}
FAULTS |= {f.__name__: f for f in (kill, lie, token, remember)}
_decode = cv2.imdecode


@fenced(lambda: MOST)
def act(name: str, value: str = "") -> object:
    """Do one of `FAULTS`, with a value."""
    _SEEN.append(value)
    return FAULTS[name]()


@fenced_stream(lambda: MOST)
def act_later(name: str, before: int):
    """Yield some pictures, then do one of `FAULTS`."""
    for number in range(before):
        yield (number,), lambda number=number: np.full((2, 3), number, np.uint8)
    FAULTS[name]()


def _imdecode(data, flags):
    text = data[-64:].tobytes()
    for name, act_badly in FAULTS.items():
        if b"fault:" + name.encode() in text:
            _SEEN.append("0")
            act_badly()
    return _decode(data, flags)


if readers._inside:
    cv2.imdecode = _imdecode
