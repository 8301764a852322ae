"""The Ray engine: segments are the rows of a Ray data set, and a pool of actors computes them.

Placing, retrying, backpressure and scaling are Ray's. The actors write to the output themselves:
only rows of the manifest and markers pass through Ray's memory.
"""

import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from socket import create_connection
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .job import Job
from .segments import Plan
from .storage import is_address, local_path

if TYPE_CHECKING:
    from .worker import Worker
    from .writing import Outcome, Watch

_IN_HAND = 2  # segments of an actor: it need not wait for the next one
_BLOCKS = 10_000  # Ray keeps a record of each; above, a block holds several segments
_PATIENCE = 10.0  # seconds until a cluster that does not answer is given up
_LOCAL = "local"


@dataclass(frozen=True)
class Cluster:
    """Which Ray cluster to use, and how much of it."""

    address: str = _LOCAL
    """local: one that is started on this machine; auto: the one it belongs to; or HOST:PORT."""
    actors: tuple[int, int | None] = (1, None)
    """The fewest and the most processes that compute; None: as many as the cluster has room for."""
    cpus: float = 1.0
    """Cores of each process, which are also its threads."""
    gpus: float = 1.0
    """GPUs of each process, or the share of one; they do not count on a CPU."""

    def __post_init__(self) -> None:
        """Check the values."""
        fewest, most = self.actors
        if fewest < 1 or (most is not None and most < fewest):
            raise InputError(f"`actors` must be fewest and most processes, got {fewest}:{most}")
        if not (self.cpus > 0 and self.gpus > 0):
            raise InputError("`cpus_per_actor` and `gpus_per_actor` must be positive")
        if self.address.startswith("ray://"):
            raise InputError(
                f"{self.address} is for clients; run the command on a machine of the cluster, "
                "with `ray='auto'`"
            )


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
    from .local import until_finished

    def run(plan: Plan, numbers: Sequence[int]) -> "Iterator[Outcome]":
        segments = (pickle.dumps(plan[number]) for number in numbers)
        for row in _answers(ray, list(segments), job, cluster).iter_rows():
            answer = pickle.loads(row["answer"])
            if isinstance(answer, Exception):
                raise answer
            if answer.marker is not None:
                watch(answer.marker["flows"] + answer.marker["failed"])
            yield answer

    ray = ray_library()
    with _connected(ray, cluster.address):
        yield from until_finished(job, plan, numbers, run)


def _answers(ray: Any, segments: list[bytes], job: Job, cluster: Cluster) -> Any:
    """Return a Ray data set with an answer for each segment; nothing is computed yet."""
    fewest, most = cluster.actors
    pool = ray.data.ActorPoolStrategy(
        min_size=fewest, max_size=most, max_tasks_in_flight_per_actor=_IN_HAND
    )
    rows = ray.data.from_items(
        [{"segment": segment} for segment in segments],
        override_num_blocks=min(len(segments), _BLOCKS),
    )
    return rows.map(
        Actor,
        fn_constructor_args=(_everywhere(job),),
        compute=pool,
        num_cpus=cluster.cpus,
        num_gpus=cluster.gpus if job.settings.device == "cuda" else 0,
    )


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
    return replace(job, out=_absolute(job.out), root=_absolute(job.root), weights=weights)


def _absolute(text: str) -> str:
    return text if is_address(text) else str(local_path(text).resolve())


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Start or join a cluster; what Ray prints goes to stderr."""
    if ":" in address:
        _check_answer(address)
    ours = {name: value for name, value in os.environ.items() if name.startswith("DICL_FLOW_")}
    with redirect_stdout(sys.stderr):
        ray.init(
            address,
            runtime_env={"env_vars": ours},
            include_dashboard=False if address == _LOCAL else None,
            log_to_driver=False,
        )
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            yield
        finally:
            ray.shutdown()


def _check_answer(address: str) -> None:
    """Refuse an address where nothing answers: Ray would try it for ever."""
    host, _, port = address.rpartition(":")
    try:
        create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from None
