"""Long-lived worker processes: what ends or blocks one is counted, and it is replaced."""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

_BUSY = 6  # times the processor time, on the clock, because the machine may be busy
_START_SECONDS = 300.0
GIB = 2**30
_MOST_MEMORY = 8 * GIB  # a worker above this is killed, so that the machine survives


@dataclass
class Attempt:
    """What became of one attempt."""

    outcome: str = ""
    """One of the allowed ones; empty if it failed."""
    failure: str = ""
    decoded: int = 0
    """Bytes of the result."""
    seconds: float = 0.0
    memory: int = 0
    """Bytes above those before the first attempt, if it was the largest attempt up to here."""
    jumps: int = 0
    """How many the attempts have made up to here; 0 if they were not watched."""


def attempts(
    prepare: Callable[..., Callable[[int], Attempt]],
    arguments: tuple[object, ...],
    numbers: Iterable[int],
    seconds: float = 10.0,
) -> Iterator[tuple[int, Attempt]]:
    """Yield what becomes of each number; `prepare(*arguments)` runs in the worker, once.

    An attempt may take `seconds` of processor time.
    """
    worker = _Worker(prepare, arguments, seconds)
    try:
        for number in numbers:
            attempt = worker.attempt(number)
            yield number, attempt
            if not worker.usable or attempt.memory > GIB:
                worker.end()
                worker = _Worker(prepare, arguments, seconds)
    finally:
        worker.end()


class _Worker:
    def __init__(
        self,
        prepare: Callable[..., Callable[[int], Attempt]],
        arguments: tuple[object, ...],
        seconds: float,
    ) -> None:
        self._seconds = seconds
        context = get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, prepare, arguments))
        self._process.start()
        other.close()
        if not self._line.poll(_START_SECONDS):
            raise TimeoutError(f"a worker for {arguments} does not start")
        self._before = self._line.recv()  # bytes, when all is imported
        self.usable = True

    def attempt(self, number: int) -> Attempt:
        """Wait for the attempt, or for what ends the worker."""
        self._line.send(number)
        most = _BUSY * self._seconds
        end = time.monotonic() + most
        while not self._line.poll(0.2):
            if time.monotonic() > end:
                return self._lost(f"hangs: no answer after {most:.0f} s")
            if _memory(self._process.pid) > self._before + _MOST_MEMORY:
                return self._lost(f"takes more than {_MOST_MEMORY // GIB} GiB")
        try:
            return _within_limits(self._line.recv(), self._seconds)
        except EOFError:
            self._process.join()
            return self._lost(f"crash: the process ended with {self._process.exitcode}")

    def end(self) -> None:
        self._process.kill()
        self._process.join()

    def _lost(self, why: str) -> Attempt:
        self.usable = False
        return Attempt(failure=why)


def _within_limits(attempt: Attempt, seconds: float) -> Attempt:
    if attempt.seconds > seconds:
        attempt.failure = f"takes {attempt.seconds:.0f} s of processor time"
    if attempt.memory > max(GIB, 8 * attempt.decoded):
        mebibytes = [n / 2**20 for n in (attempt.memory, attempt.decoded)]
        attempt.failure = "takes {:.0f} MiB for {:.0f} MiB".format(*mebibytes)
    return attempt


def _serve(
    line: Connection,
    prepare: Callable[..., Callable[[int], Attempt]],
    arguments: tuple[object, ...],
) -> None:
    attempt = prepare(*arguments)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)  # what native libraries print about damaged files
    before = _memory(os.getpid())
    line.send(before)
    peak = _peak()
    while True:
        number = line.recv()
        start = time.process_time()
        made = attempt(number)
        made.seconds = time.process_time() - start
        if _peak() > peak:
            peak = _peak()
            made.memory = peak - before
        line.send(made)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory(process: int | None) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
