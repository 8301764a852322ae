"""Child processes of tests, each in a separate process group with a deadline."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

SUPPORT, REPOSITORY = Path(__file__).parent, Path(__file__).parents[2]
DEADLINE = 200  # seconds; less than the time limit of a test


def _start(
    arguments: Iterable[object], environment: Mapping[str, str], **streams: Any
) -> subprocess.Popen[str]:
    path = os.pathsep.join(map(str, (SUPPORT, SUPPORT.parent, REPOSITORY, REPOSITORY / "src")))
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **streams,
    )


@contextmanager
def started(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python with `arguments`; at the end of the block its whole group is killed."""
    process = _start(arguments, environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a child; return its output and exit code."""
    out, err = process.communicate(timeout=DEADLINE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_child(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` and wait for it."""
    with started(*arguments, **environment) as process:
        return finished(process)


@cache
def _forking() -> subprocess.Popen[str]:
    return _start([SUPPORT / "forking_child.py", DEADLINE], {}, stdin=subprocess.PIPE)


def run_forked_child(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script of the tests and wait for it, as `run_child` does, but without the imports.

    It is forked from a process that has imported what takes seconds, and that keeps the
    environment it was started with. It belongs to the group of that process.
    """
    forking = _forking()
    words = [str(word) for word in (Path.cwd(), script, *arguments)]
    assert forking.stdin is not None
    assert forking.stdout is not None
    print(json.dumps(words), file=forking.stdin, flush=True)
    answer = forking.stdout.readline()
    assert answer, f"the process that forks has ended: {forking.wait()}"
    return subprocess.CompletedProcess(words[1:], *json.loads(answer))


def end_forking() -> None:
    """End the process that forks, if there is one, and what it left behind."""
    if not _forking.cache_info().currsize:
        return
    forking = _forking()
    assert forking.stdin is not None
    forking.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        forking.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(forking.pid, signal.SIGKILL)
