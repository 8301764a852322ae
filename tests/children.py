"""Child processes of tests, each in a separate process group with a deadline."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

TESTS = Path(__file__).parent
DEADLINE = 200  # seconds; less than the time limit of a test


@contextmanager
def started(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python with `arguments`; at the end of the block its whole group is killed."""
    path = os.pathsep.join(map(str, (TESTS, TESTS.parent, TESTS.parent / "src")))
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
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


def run_in_turn(script: Path, runs: Iterable[Sequence[object]]) -> tuple[list[int], str]:
    """Run a script with each of several lists of arguments; return the exit codes and errors."""
    lists = [json.dumps(list(map(str, arguments))) for arguments in runs]
    child = run_child(TESTS / "forking_child.py", script, *lists)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1]), child.stderr
