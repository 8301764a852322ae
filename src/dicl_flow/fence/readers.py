"""Functions that decode, and the processes in which they do so when the fence is on.

    @fenced(most_bytes)
    def decode_pixels(data: bytes, flags: int) -> Array | None: ...

A call decodes in this process as usual or, with the fence on, in a process of its own, which is
forked from a template that has imported the decoders. Arguments and results are plain values,
arrays, and paths, which the parent opens. The fence is one of the whole process and, by an
environment variable, of those it starts.
"""

import io
import os
import socket
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import signature
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from ..errors import InputError
from .decoders import MODULES, REQUESTS, Fence, Item, Pixels
from .seal import FENCED

P = ParamSpec("P")
R = TypeVar("R")
_VARIABLE = "DICL_FLOW_FENCED"


class Reader(NamedTuple):
    """A function that is fenced."""

    function: Callable[..., Any]
    streams: bool


READERS: dict[str, Reader] = {}
"""By module and name."""


def fenced(most: Callable[[], int]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function run behind the fence, if that is on; `most` is the bytes of its result."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name, bind = _register(function, streams=False), signature(function).bind

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            fence = current_fence()
            if fence is None:
                return function(*arguments, **named)
            return cast(R, fence.call(name, bind(*arguments, **named).args, most()))

        return call

    return decorate


def fenced_stream(
    most: Callable[[], int],
) -> Callable[[Callable[P, Iterator[Item[Pixels]]]], Callable[P, Iterator[Item[Pixels]]]]:
    """Do the same for a generator; the pixels of an item are read before the next one."""

    def decorate(
        function: Callable[P, Iterator[Item[Pixels]]],
    ) -> Callable[P, Iterator[Item[Pixels]]]:
        name, bind = _register(function, streams=True), signature(function).bind

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> Iterator[Item[Pixels]]:
            fence = current_fence()
            if fence is None:
                return function(*arguments, **named)
            return fence.stream(name, bind(*arguments, **named).args, most())

        return call

    return decorate


def _register(function: Callable[..., Any], *, streams: bool) -> str:
    name = f"{function.__module__}:{function.__qualname__}"
    READERS[name] = Reader(function, streams)
    return name


# --- inside a decoder -----------------------------------------------------------------------------


class Handed(io.BufferedReader):
    """A file that the parent has opened."""

    name = ""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(io.FileIO(descriptor))
        self.name = name


FILES: dict[str, Handed] = {}
"""By path, the files of the request that this decoder answers."""


def handed(path: Path) -> Handed | None:
    """Return the file that a decoder was given, from its start; None outside the fence."""
    file = FILES.get(str(path))
    if file is not None:
        file.seek(0)
    return file


# --- the fence of this process --------------------------------------------------------------------

_lock = Lock()
_fence: Fence | None = None
_inside = False


def go_inside() -> None:
    """Let all functions decode in this process: it is behind the fence."""
    global _inside
    _inside = True


def current_fence() -> Fence | None:
    """Return the fence, if it is on; a child process of a fenced one starts its own."""
    global _fence
    if _inside or _VARIABLE not in os.environ:
        return None
    with _lock:
        if _fence is None or _fence.process != os.getpid():
            _fence = Fence()
        return _fence


def put_up_fence(modules: tuple[str, ...] = MODULES, requests: int = REQUESTS) -> None:
    """Decode behind the fence from now on, also in processes that are started later.

    `requests` is how many one decoder answers.
    """
    global _fence
    if not can_fence():
        raise InputError("decoders can be fenced on Linux and macOS only; leave out `fenced`")
    take_down_fence()  # one that is up may allow more requests
    with _lock:
        _fence = Fence(modules, requests)
        os.environ[_VARIABLE] = "1"


def take_down_fence() -> None:
    """Decode in this process again."""
    global _fence
    with _lock:
        os.environ.pop(_VARIABLE, None)
        if _fence is not None and _fence.process == os.getpid():
            _fence.close()
        _fence = None


def can_fence() -> bool:
    """Whether this system has what the fence is made of."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds")


def describe_fence() -> dict[str, str]:
    """Return what decoders are kept from, and what stays open on this machine; a line each."""
    fence = current_fence()
    if fence is None:
        return {"not_fenced": ", ".join(FENCED)}
    return _described(fence.still_open())


def machine_fences() -> dict[str, str]:
    """Return, for a command without a fence, what decoders can be kept from on this machine."""
    if not can_fence():
        return {"not_fenceable": ", ".join(FENCED)}
    fence = Fence(())
    try:
        named = {"fenced": "fenceable", "not_fenced": "not_fenceable"}
        return {named[key]: value for key, value in _described(fence.still_open()).items()}
    finally:
        fence.close()


def _described(still_open: dict[str, str]) -> dict[str, str]:
    described = {"fenced": ", ".join(name for name in FENCED if name not in still_open)}
    if still_open:
        whys = (f"{name}: {why}" for name, why in still_open.items())
        described["not_fenced"] = "; ".join(whys)
    return described
