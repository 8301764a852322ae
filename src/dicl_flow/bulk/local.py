"""The local engine: one process for each GPU, or this process."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from threading import Lock
from time import sleep

from .job import Job
from .segments import Plan, Segment, is_finished
from .worker import Worker
from .writing import Outcome, Watch

_IN_HAND = 2  # segments of a process: it decodes the next one while it ends the one before
_MOMENT = 0.01  # seconds for which a process waits for a segment before it looks what it has ended
_PATIENCE = 1.0  # seconds between two looks at what other processes compute

Run = Callable[[Plan, Sequence[int]], Iterator[Outcome]]


def run_local(
    job: Job, plan: Plan, numbers: Sequence[int], devices: Sequence[str], watch: Watch
) -> Iterator[Outcome]:
    """Compute segments of a plan by their numbers; yield what became of each.

    Segments that another run computes are waited for: if it is killed, they are computed here.
    `watch` is called with the number of flows whenever some are written.
    """
    compute = _here if len(devices) == 1 else _in_processes
    with ExitStack() as stack:
        yield from until_finished(job, plan, numbers, compute(job, devices, watch, stack))


def until_finished(job: Job, plan: Plan, numbers: Sequence[int], run: Run) -> Iterator[Outcome]:
    """Run segments; those that other processes compute are looked at again until they are done."""
    storage, left = job.storage(), list(numbers)
    while left:
        held = []
        for outcome in run(plan, left):
            if outcome.marker is None and not is_finished(storage, outcome.segment):
                held.append(int(outcome.segment.partition("-")[0]))
            else:
                yield outcome
        left = held
        if left:
            sleep(_PATIENCE)


def _here(job: Job, devices: Sequence[str], watch: Watch, stack: ExitStack) -> Run:
    worker = Worker(job, devices[0], watch=watch)
    return lambda plan, numbers: worker.run(plan[number] for number in numbers)


def _in_processes(job: Job, devices: Sequence[str], watch: Watch, stack: ExitStack) -> Run:
    context = multiprocessing.get_context("spawn")
    ends: dict[Connection, str] = {}
    for device in devices:
        mine, other = context.Pipe()
        process = context.Process(target=_serve, args=(job, device, other), daemon=True)
        process.start()
        other.close()
        stack.callback(process.join)
        stack.callback(mine.close)  # runs first: the process ends when nobody asks any more
        ends[mine] = device
    return lambda plan, numbers: _shared_out(plan, numbers, ends, watch)


def _shared_out(
    plan: Plan, numbers: Sequence[int], ends: dict[Connection, str], watch: Watch
) -> Iterator[Outcome]:
    """Give each process some segments, and another one for each that it returns."""
    left, expected = iter(numbers), len(numbers)
    for end in [*ends] * _IN_HAND:
        _send_next(end, plan, left)
    while expected:
        ready = wait([*ends])
        for end in (end for end in ends if end in ready):
            try:
                answer = end.recv()
            except (EOFError, ConnectionResetError):  # the latter if it has not read all
                raise ChildProcessError(
                    f"the process on {ends[end]} has died; the same command resumes the run"
                ) from None
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, int):
                watch(answer)
                continue
            expected -= 1
            _send_next(end, plan, left)
            yield answer


def _send_next(end: Connection, plan: Plan, left: Iterator[int]) -> None:
    """Send a segment, or None if there are no more: then the process ends those it has."""
    number = next(left, None)
    with suppress(BrokenPipeError):  # it has died, which is found when its answers are read
        end.send(None if number is None else plan[number])


def _serve(job: Job, device: str, end: Connection) -> None:
    """Compute the segments that arrive, until the other end is closed."""
    sending = Lock()

    def send(answer: Outcome | int | Exception) -> None:
        with sending:
            end.send(answer)

    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        try:
            worker = Worker(job, device, watch=send)
            while True:
                for outcome in worker.run(_arriving(end)):
                    send(outcome)
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            send(error)


def _arriving(end: Connection) -> Iterator[Segment | None]:
    """The segments of one run; None whenever none has arrived for a moment."""
    while True:
        while not end.poll(_MOMENT):
            yield None
        segment: Segment | None = end.recv()
        if segment is None:
            return
        yield segment
