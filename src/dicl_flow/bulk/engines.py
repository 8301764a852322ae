"""The engines, which compute segments of a plan: processes of this machine, or a Ray cluster.

On Ray, segments are rows of a data set for a pool of actors. Placing, retrying, backpressure and
scaling are Ray's; only rows of the manifest and markers pass through its memory.
"""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from socket import create_connection
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .job import Job, Plan, Segment, read_marker
from .storage import is_address, local_path

if TYPE_CHECKING:
    from .worker import Worker
    from .writing import Outcome, Watch

_IN_HAND = 2  # segments of a process: it decodes the next one while it ends the one before
_MOMENT = 0.01  # seconds for which a process waits for a segment before it looks what it has ended
_PATIENCE = 1.0  # seconds between two looks at what other processes compute
_BLOCKS = 10_000  # Ray keeps a record of each; above, a block holds several segments
_CONNECTING = 10.0  # seconds until a cluster that does not answer is given up


def run_local(
    job: Job, plan: Plan, numbers: Sequence[int], devices: Sequence[str], watch: "Watch"
) -> "Iterator[Outcome]":
    """Compute segments of a plan by their numbers; yield what became of each."""
    from .worker import Worker

    with ExitStack() as stack:
        if len(devices) > 1:
            ends = _start_processes(job, devices, stack)
            yield from _until_finished(job, numbers, lambda n: _shared_out(plan, n, ends, watch))
        else:
            worker = Worker(job, devices[0], watch=watch)
            yield from _until_finished(job, numbers, lambda n: worker.run(map(plan.__getitem__, n)))


def _until_finished(
    job: Job, numbers: Sequence[int], run: "Callable[[Sequence[int]], Iterator[Outcome]]"
) -> "Iterator[Outcome]":
    """Run segments; those of another run are waited for; if it is killed, they run here."""
    storage, left = job.storage(), list(numbers)
    while left:
        held = []
        for outcome in run(left):
            if outcome.marker is None and not read_marker(storage, outcome.segment):
                held.append(int(outcome.segment.partition("-")[0]))
            else:
                yield outcome
        left = held
        if left:
            sleep(_PATIENCE)


def _start_processes(job: Job, devices: Sequence[str], stack: ExitStack) -> dict[Connection, str]:
    """Start a process for each device, which ends with the stack; return how to reach them."""
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
    return ends


def _shared_out(
    plan: Plan, numbers: Sequence[int], ends: dict[Connection, str], watch: "Watch"
) -> "Iterator[Outcome]":
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
                died = f"the process on {ends[end]} has died; the same command resumes the run"
                raise ChildProcessError(died) from None
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
    from .worker import Worker

    sending = Lock()

    def send(answer: "Outcome | int | Exception") -> None:
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


@dataclass(frozen=True)
class Cluster:
    """Which Ray cluster to use, and how much of it."""

    address: str = "local"
    """local: one that is started on this machine; auto: the one it belongs to; or HOST:PORT."""
    actors: tuple[int, int | None] = (1, None)
    """The fewest and the most processes that compute; None: as many as the cluster has room for."""
    cpus: float = 1.0  # cores of each process, which are also its threads
    gpus: float = 1.0  # GPUs of each process, or the share of one; they do not count on a CPU

    def __post_init__(self) -> None:
        fewest, most = self.actors
        if fewest < 1 or (most is not None and most < fewest):
            raise InputError(f"`actors` must be fewest and most processes, got {fewest}:{most}")
        if not (self.cpus > 0 and self.gpus > 0):
            raise InputError("`cpus_per_actor` and `gpus_per_actor` must be positive")
        if self.address.startswith("ray://"):
            where = "a machine of the cluster, with `ray='auto'`"
            raise InputError(f"{self.address} is for clients; run the command on {where}")


def ray_library() -> Any:
    """Return the module `ray`; if it is missing, the error names the extra to install."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent to Ray's makers
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("`ray` needs Ray: pip install 'dicl-flow[bulk]'") from None
    return ray


def run_ray(
    job: Job, plan: Plan, numbers: Sequence[int], cluster: Cluster, watch: "Watch"
) -> "Iterator[Outcome]":
    """Compute segments of a plan on a cluster, as `run_local` does on this machine."""

    def run(numbers: Sequence[int]) -> "Iterator[Outcome]":
        segments = [{"segment": pickle.dumps(plan[number])} for number in numbers]
        blocks = min(len(segments), _BLOCKS)
        answers = ray.data.from_items(segments, override_num_blocks=blocks).map(
            Actor,
            fn_constructor_args=(_everywhere(job),),
            compute=ray.data.ActorPoolStrategy(
                min_size=fewest, max_size=most, max_tasks_in_flight_per_actor=_IN_HAND
            ),
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus if job.settings.device == "cuda" else 0,
        )
        for row in answers.iter_rows():
            answer = pickle.loads(row["answer"])
            if isinstance(answer, Exception):
                raise answer
            if answer.marker is not None:
                watch(answer.marker["flows"] + answer.marker["failed"])
            yield answer

    ray, (fewest, most) = ray_library(), cluster.actors
    with _connected(ray, cluster.address):
        yield from _until_finished(job, numbers, run)


class Actor:
    """A process of the cluster, which computes one segment after the other."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._worker: Worker | None = None

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        """Compute a segment; what a user can fix is an answer, because Ray would wrap it."""
        from .worker import Worker, run_segment

        try:
            self._worker = self._worker or Worker(self._job, self._job.settings.device)
            answer: Outcome | Exception = run_segment(self._worker, pickle.loads(row["segment"]))
        except (InputError, OSError) as error:
            answer = error
        return {"answer": pickle.dumps(answer)}


def _everywhere(job: Job) -> Job:
    """Return a job for processes that start in other folders."""
    weights = job.weights
    if weights is not None and Path(weights).is_file():
        weights = str(Path(weights).resolve())
    out, root = (
        text if is_address(text) else str(local_path(text).resolve())
        for text in (job.out, job.root)
    )
    return replace(job, out=out, root=root, weights=weights)


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Start or join a cluster; what Ray prints goes to stderr."""
    if ":" in address:
        host, _, port = address.rpartition(":")
        try:  # Ray would try it for ever
            create_connection((host, int(port)), _CONNECTING).close()
        except (OSError, ValueError) as error:
            raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from None
    ours = {name: value for name, value in os.environ.items() if name.startswith("DICL_FLOW_")}
    with redirect_stdout(sys.stderr):
        ray.init(
            address,
            runtime_env={"env_vars": ours},
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
        )
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            yield
        finally:
            ray.shutdown()
