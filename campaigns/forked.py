"""Calls in forked children of a process that has imported torch once, which takes seconds.

Threads do not survive a fork: set OMP_NUM_THREADS=1, and compute nothing in the parent.
"""

import atexit
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from dicl_flow.cli import main as run_command

_PRELOADED = """
    av pydantic rich.progress typer.rich_utils zoneinfo
    torch.utils.tensorboard torch._dynamo torch.export torch.onnx._internal.exporter._core
    onnx onnxscript onnxruntime
    dicl_flow.estimation.export dicl_flow.evaluation dicl_flow.training.trainer dicl_flow.render
    dicl_flow.video dicl_flow.estimation.estimator dicl_flow.cli.video
"""
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def preload() -> None:
    """Import what commands import, once for all children."""
    for name in _PRELOADED.split():
        with suppress(ImportError):  # of an extra
            import_module(name)


@dataclass(frozen=True)
class Moment:
    """When a child is killed: after some CPU time, or right before one of its file operations."""

    seconds: float | None = None
    operation: int | None = None

    def __str__(self) -> str:
        if self.operation is not None:
            return f"before file operation {self.operation}"
        return "never" if self.seconds is None else f"after {self.seconds:.3f} s of CPU time"


NEVER = Moment()


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    """The exit code, or minus the signal."""
    printed: str
    errors: str
    seconds: float
    """CPU time."""
    operations: int
    """How many file operations it did; 0 if it was killed."""
    peak: int
    """The most memory that it had above that of the parent, in bytes."""

    @property
    def last_line(self) -> str:
        """The last line of its errors."""
        return (self.errors.strip().splitlines() or [""])[-1]


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a temporary folder that no child removes when it ends."""
    folder = Path(tempfile.mkdtemp()).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def command(arguments: Sequence[object]) -> Callable[[], None]:
    """Return the call of a command of `dicl-flow`."""
    return partial(run_command, list(map(str, arguments)))


def run_forked(
    call: Callable[[], None], folder: Path, moment: Moment = NEVER, deadline: float = 600
) -> Ended:
    """Call something in a child that is killed at a moment; files in `folder` are watched.

    After `deadline` seconds of CPU time the child is killed in any case.
    """
    logs = [folder.with_name(f"{folder.name}.{kind}") for kind in ("out", "err", "count")]
    for log in logs:
        log.write_bytes(b"")
    if (child := os.fork()) == 0:
        _live(call, folder, moment, logs)
    limit = deadline if moment.seconds is None else moment.seconds
    while not (found := os.wait4(child, os.WNOHANG))[0]:
        if (left := limit - _cpu_seconds(child)) <= 0:
            os.kill(child, signal.SIGKILL)
        time.sleep(min(max(left / 2, 0.001), 0.02))
    _, status, usage = found
    printed, errors, count = (log.read_text(errors="replace") for log in logs)
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Ended(
        os.waitstatus_to_exitcode(status),
        printed,
        errors,
        usage.ru_utime + usage.ru_stime,
        int(count or 0),
        (usage.ru_maxrss - mine) * 1024,
    )


def _cpu_seconds(process: int) -> float:
    """CPU time of another process, to the microsecond: the clock that belongs to its number."""
    try:
        return time.clock_gettime(~process << 3 | 2)
    except OSError:  # it has just ended
        return 0


def _live(call: Callable[[], None], folder: Path, moment: Moment, logs: list[Path]) -> None:
    """Be the child; this does not return."""
    code = 70
    try:
        for number, log in enumerate(logs[:2], start=1):
            os.dup2(os.open(log, os.O_WRONLY), number)
        operations = _watch(folder, moment)
        try:
            call()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        atexit._run_exitfuncs()
        logs[2].write_text(str(operations[0]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch(folder: Path, moment: Moment) -> list[int]:
    """Count operations that change files in `folder`; kill this process before a given one."""
    count, place = [0], str(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and bool(arguments[2] & _WRITING)
        if not (writes or event in _CHANGES) or not str(arguments[0]).startswith(place):
            return
        count[0] += 1
        if count[0] == moment.operation:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count
