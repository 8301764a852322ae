"""Decoders outside: processes that answer requests, and the template that they are forked from."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from ..errors import InputError
from .seal import Limits
from .wire import BrokenLineError, Line

Pixels = TypeVar("Pixels")
Item = tuple[tuple[Any, ...], Callable[[], Pixels] | None]
"""Plain values, and what reads the pixels, if it has any."""

MODULES = (
    "dicl_flow.files.images",
    "dicl_flow.files.exr",
    "dicl_flow.files.hdf5",
    "dicl_flow.data.timing",
)
"""Whose functions are fenced: named, because they import this one."""
LIBRARIES = ("cv2", "av", "OpenEXR", "h5py")
"""What they import late, and what may be missing."""
ANSWER_SECONDS = 30.0
"""On the clock, for each answer: an image, or a frame of a video."""
REQUESTS = 100
"""That one decoder answers, where all files come from one person."""
PROCESSOR_SECONDS = 20
"""Of processor time, for the same."""
_START_SECONDS = 120.0
_SPARE_MEMORY = 2**30
_NONSENSE = "answered nonsense"
_BUFFER = 2**22
_SPARE = 4  # decoders that wait for a request
_SETTINGS = ("DICL_FLOW_MAX_SIZE",)
_PASSED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")
"""Of the environment; a token or a key of a store is none of a decoder's business."""


class LostDecoderError(InputError):
    """A decoder crashed, took too long or broke a rule: the fault of the file it read."""


class Decoder:
    """A process that answers requests, one at a time."""

    def __init__(self, template: "_Template", line: Line, process: int, limits: Limits) -> None:
        self._template, self._line, self._process = template, line, process
        self.limits, self.still_open = limits, dict[str, str]()
        self.answered = 0
        """Requests, before this one."""

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return bool(self._process)

    def begin(self, request: object) -> None:
        """Send a request; wait before the first until the decoder is sealed."""
        if not self.answered:
            self.still_open = self._exchange(lambda: self._line.receive(0, _START_SECONDS))
        self.ask(request)

    def ask(self, question: object) -> None:
        """Send a request, or a question about it."""
        self._renew_seconds()
        self._exchange(lambda: self._line.send(question, ANSWER_SECONDS))

    def answer(self, most: int) -> Any:
        """Wait for an answer; one that does not come ends the process, and is an `InputError`."""
        answer = self._exchange(lambda: self._line.receive(most, ANSWER_SECONDS))
        if not isinstance(answer, dict) or len(answer) != 1:
            self._stop(_NONSENSE)
        ((kind, value),) = answer.items()
        if kind == "refused":
            raise InputError(str(value))
        if kind != "value":
            raise _lost(str(value))
        return value

    def end(self, command: str = "end") -> int:
        """End the process; with "status", wait, and return what `os.waitpid` does."""
        self._line.close()
        process, self._process = self._process, 0
        return self._template.end(process, command) if process else 0

    def _exchange(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except TimeoutError:
            self._stop(f"gave no answer within {ANSWER_SECONDS:g} s")
        except BrokenLineError:
            self._stop("")
        except BaseException:  # as Ctrl-C: the rest of this answer must not become the next one
            self.end()
            raise

    def _stop(self, why: str) -> None:
        status = self.end("status")
        raise _lost(why or _ending(status, self.limits)) from None

    def _renew_seconds(self) -> None:
        """Allow as much processor time for the next answer as for the first."""
        if sys.platform != "linux":
            return
        import resource

        with suppress(OSError):
            used = time.clock_gettime((~self._process << 3) | 2)  # the clock of a process
            most = resource.prlimit(self._process, resource.RLIMIT_CPU)[1]
            soft = int(used) + 1 + self.limits.seconds
            resource.prlimit(self._process, resource.RLIMIT_CPU, (soft, most))


@contextmanager
def interpreting() -> Iterator[None]:
    """Begin a block that looks at an answer: a decoder that was taken over may send any values."""
    try:
        yield
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise _lost(_NONSENSE) from None


def _lost(why: str) -> LostDecoderError:
    return LostDecoderError(f"it cannot be decoded: its decoder {why}")


def _ending(status: int, limits: Limits) -> str:
    """Say in words how a decoder ended that should have answered."""
    number = os.waitstatus_to_exitcode(status)
    if number >= 0:
        return f"ended without an answer (exit code {number})"
    name = signal.Signals(-number).name
    if -number == signal.SIGXCPU:
        return f"took more than {limits.seconds} s of processor time"
    if -number == signal.SIGSYS:
        return "was stopped: it did what no decoder needs to do"
    return f"was stopped ({name})" if -number == signal.SIGKILL else f"crashed ({name})"


class _Template:
    """The process that decoders are forked from."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        here, there = socket.socketpair()
        # -P: nothing is imported from the current folder, which may be a stranger's
        words = [sys.executable, "-P", "-m", "dicl_flow.fence.child", str(there.fileno())]
        nothing = subprocess.DEVNULL
        # not in the group of the terminal: it ends when the connection does
        self._child = subprocess.Popen(
            [*words, *modules],
            env=_environment(),
            pass_fds=[there.fileno()],
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )
        there.close()
        self._line, self._lock, self._ready = Line(here), Lock(), False

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def fork(self, limits: Limits) -> Decoder:
        """Return a new decoder."""
        here, there = socket.socketpair()
        for end in (here, there):  # fewer turns for a picture, where the system allows it
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        with there:
            process = self._ask("fork", tuple(limits), there)
        return Decoder(self, Line(here), process, limits)

    def end(self, process: int, command: str) -> int:
        """End a decoder. If the template is gone, its decoders are gone as well."""
        try:
            return int(self._ask(command, process))
        except BrokenLineError:
            return signal.SIGKILL

    def close(self) -> None:
        self._line.close()
        self._child.kill()
        self._child.wait()

    def _ask(self, command: str, value: object, file: socket.socket | None = None) -> Any:
        with self._lock:
            try:
                if not self._ready:
                    self._ready = self._line.receive(0, _START_SECONDS) == "ready"
                files = [] if file is None else [file.fileno()]
                self._line.send((command, value), _START_SECONDS, files)
                return self._line.receive(0, _START_SECONDS)
            except (TimeoutError, BrokenLineError):
                self._child.kill()
                raise BrokenLineError from None


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    package = str(Path(__file__).parents[2])
    places = dict.fromkeys([*filter(None, sys.path), package])
    # each arena of malloc takes 64 MiB of addresses, which are limited
    return {**passed, **threads, "PYTHONPATH": os.pathsep.join(places), "MALLOC_ARENA_MAX": "2"}


class Fence:
    """Decoders of this process, a few of which wait for requests.

    Each ends after `requests`: with 1, no file can do anything to that of another request. A
    video is always read by a decoder of its own.
    """

    def __init__(self, modules: tuple[str, ...] = MODULES, requests: int = REQUESTS) -> None:
        self.process, self._requests = os.getpid(), requests
        self._modules = (*LIBRARIES, *modules) if modules else ()
        self._spare: deque[Decoder] = deque()
        self._lock, self._template = Lock(), _Template(self._modules)
        # forking and ending decoders takes longer than most of their work
        self._behind = ThreadPoolExecutor(1, "fence")

    def close(self) -> None:
        """End all processes."""
        self._behind.shutdown(cancel_futures=True)
        with self._lock:
            self._spare.clear()
            self._template.close()

    def call(self, name: str, arguments: tuple[Any, ...], most: int) -> Any:
        """Let a decoder call a function; the result has at most `most` bytes."""
        decoder = self._begin(name, arguments, most)
        try:
            return decoder.answer(most)
        finally:
            decoder.answered += 1
            if decoder.usable and decoder.answered < self._requests:
                with self._lock:
                    self._spare.appendleft(decoder)
            else:
                self._replace(decoder)

    def stream(self, name: str, arguments: tuple[Any, ...], most: int) -> Iterator[Item[Any]]:
        """Let a decoder run a generator, item by item."""
        decoder, current = self._begin(name, arguments, most), 0

        def pixels(number: int) -> Any:
            if number != current:
                raise RuntimeError("pixels are read before the next item")
            decoder.ask("pixels")
            return decoder.answer(most)

        try:
            while True:
                decoder.ask("next")
                item = decoder.answer(0)
                if item is None:
                    return
                head, has_pixels = item
                current += 1
                yield tuple(head), partial(pixels, current) if has_pixels else None
        finally:
            self._replace(decoder)

    def still_open(self) -> dict[str, str]:
        """Return what this machine does not let us fence, and why."""
        decoder = self._take(_SPARE_MEMORY)
        try:
            decoder.begin(("", (), {}))
            return dict(decoder.still_open)
        finally:
            decoder.end()

    def _begin(self, name: str, arguments: tuple[Any, ...], most: int) -> Decoder:
        settings = {key: os.environ.get(key) for key in _SETTINGS}
        decoder = self._take(_SPARE_MEMORY + 4 * most)
        decoder.begin((name, arguments, settings))
        return decoder

    def _take(self, memory: int) -> Decoder:
        """Return a decoder that waits for a request."""
        limits = Limits(memory, PROCESSOR_SECONDS)
        with self._lock:
            self._revive()
            kept = [decoder for decoder in self._spare if decoder.limits == limits]
            if kept:
                self._spare.remove(kept[0])
                return kept[0]
            return self._fork(limits)

    def _replace(self, decoder: Decoder) -> None:
        """End a decoder and fork the next one, in a thread of our own."""

        def work() -> None:
            decoder.end()
            with self._lock, suppress(InputError):  # which the next request meets again
                while len(self._spare) < _SPARE:
                    self._spare.append(self._fork(decoder.limits))

        with suppress(RuntimeError):  # the fence was taken down, and all its processes
            self._behind.submit(work)

    def _revive(self) -> None:
        """Start the template again if it has ended, and its decoders with it."""
        if not self._template.alive:
            self._spare.clear()
            self._template.close()
            self._template = _Template(self._modules)

    def _fork(self, limits: Limits) -> Decoder:
        try:
            return self._template.fork(limits)
        except BrokenLineError:
            raise InputError("the process that decodes did not start; try again") from None
