"""The options of `bulk` for a Ray cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..bulk.cluster import Cluster
    from ..bulk.job import Job
    from ..bulk.run import Engine
    from ..bulk.segments import Plan
    from ..bulk.writing import Outcome, Watch
    from .bulk_progress import BulkProgress

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[auto|HOST:PORT]",
        help="Compute on a Ray cluster: a new one here, the one of this machine, or another.",
    ),
]
Actors = Annotated[
    str | None,
    typer.Option(metavar="N|MIN:MAX", help="Processes of the cluster; default: all that fit."),
]
CpusPerActor = Annotated[
    float | None, typer.Option(help="Cores and threads of each of them; default: 1.")
]
GpusPerActor = Annotated[
    float | None, typer.Option(help="GPUs of each of them, or a share of one; default: 1.")
]


def parse_cluster(
    address: str | None, actors: str | None, cpus: float | None, gpus: float | None
) -> "Cluster | None":
    """Return the cluster to compute on, or None for this machine alone."""
    from ..bulk.cluster import Cluster, ray_library

    given = {"--actors": actors, "--cpus-per-actor": cpus, "--gpus-per-actor": gpus}
    if address is None:
        for option, value in given.items():
            if value is not None:
                raise InputError(f"{option} is for --ray, which is not given")
        return None
    pool = (1, None) if actors is None else _parse_actors(actors)
    cluster = Cluster(address, pool, 1.0 if cpus is None else cpus, 1.0 if gpus is None else gpus)
    ray_library()
    return cluster


def _parse_actors(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition(":")
    if not (fewest.isdecimal() and (most or fewest).isdecimal()):
        raise InputError(f"--actors is a number, or MIN:MAX, got {text!r}")
    return int(fewest), int(most or fewest)


def devices(name: str) -> list[str]:
    """Return the kind of the devices of a cluster, which this machine need not have."""
    if name not in ("cpu", "cuda"):
        raise InputError(f"on a cluster, --device is cpu or cuda, got {name!r}")
    return [name]


def ray_engine(cluster: "Cluster", progress: "BulkProgress") -> "Engine":
    """Return the engine of a cluster, which counts the hours that its processes compute."""
    from ..bulk.cluster import run_ray

    def run(
        job: "Job", plan: "Plan", numbers: "Sequence[int]", watch: "Watch"
    ) -> "Iterator[Outcome]":
        devices = cluster.gpus if job.settings.device == "cuda" else cluster.cpus
        progress.busy = 0.0
        for outcome in run_ray(job, plan, numbers, cluster, watch):
            progress.busy += outcome.seconds * devices
            yield outcome

    return run
