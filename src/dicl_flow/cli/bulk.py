"""The command `bulk`, and the group of commands under it."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import bulk_ray, options
from .command import Group
from .computing import estimates

if TYPE_CHECKING:
    from ..bulk.cluster import Cluster
    from ..bulk.job import Job
    from ..bulk.run import Engine
    from ..bulk.segments import Plan

_RUN = "run"


class BulkGroup(Group):
    """Commands under one name; anything that is not one of them is the manifest of a run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments: `bulk MANIFEST` is `bulk run MANIFEST`."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


bulk_app = typer.Typer(
    cls=BulkGroup,
    help="Estimate millions of pairs: `dicl-flow bulk MANIFEST -o OUT` is `bulk run`.",
    no_args_is_help=True,
)


@bulk_app.command(_RUN)
@estimates
def run(
    manifest: Annotated[
        str, typer.Argument(help="Manifest (.csv, .parquet), folder tree, 'glob' or video.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder, or address as s3://….")],
    no_scores: Annotated[
        bool, typer.Option("--no-scores", help="Write no tables of flows and of clips.")
    ] = False,
    table: Annotated[
        str, typer.Option(help="Format of the tables: parquet or csv; auto: what is installed.")
    ] = "auto",
    fields: Annotated[
        str, typer.Option(metavar="npy|png", help="Write fields as tar shards: fp16, or KITTI.")
    ] = "",
    grid: Annotated[int, typer.Option(help="Fields are means over squares of N px.")] = 1,
    flows: Annotated[
        str, typer.Option(metavar="FORMAT", help="Write a file for each flow: flo, npz, png …")
    ] = "",
    occlusion: Annotated[
        bool, typer.Option("--occlusion", help="Estimate both directions: the occluded share.")
    ] = False,
    min_confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="Flow with less confidence is unknown.")
    ] = None,
    decoder: Annotated[
        str, typer.Option(help="What reads videos: pyav or opencv; auto: what is installed.")
    ] = "auto",
    segment: Annotated[int, typer.Option(help="Flows that are written at a time.")] = 256,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Compute part I of N.")] = "1/1",
    max_errors: Annotated[
        int | None, typer.Option(min=0, help="Stop when more flows have failed.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Compute segments with failed flows again.")
    ] = False,
    ray: bulk_ray.Ray = None,
    actors: bulk_ray.Actors = None,
    cpus_per_actor: bulk_ray.CpusPerActor = None,
    gpus_per_actor: bulk_ray.GpusPerActor = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many flows, bytes and hours it is.")
    ] = False,
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    full_size: options.FullSize = False,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Estimate all pairs and clips of MANIFEST.

    The same command resumes a run that was stopped or killed, and computes only what is missing.
    What cannot be read is a row of the table with its error.

    Examples:

      dicl-flow bulk manifest.parquet -o out

      dicl-flow bulk 'clips/*.mp4' -o out --fields npy --grid 8

      dicl-flow bulk manifest.csv -o out --shard 3/64

      dicl-flow bulk manifest.csv -o out --ray auto --actors 2:16

      dicl-flow bulk manifest.csv -o out --dry-run
    """
    from dataclasses import replace

    from ..bulk.job import Job, Settings, sha256_of
    from ..bulk.manifest import read_manifest
    from ..bulk.segments import Plan
    from ..weights import resolve

    part = _parse_shard(shard)
    cluster = bulk_ray.parse_cluster(ray, actors, cpus_per_actor, gpus_per_actor)
    _check_output(output, manifest)
    digest = sha256_of(resolve(weights))
    listed = read_manifest(manifest)
    settings = Settings(
        *(digest, not no_scores, _table(table, quiet=quiet or no_scores), fields, grid, flows),
        occlusion=occlusion,
        min_confidence=min_confidence,
        precision=how["precision"],
        backend=how["backend"],
        quality=quality,
        full_size=full_size,
        decoder=_decoder(decoder, quiet=quiet or not listed.has_clips()),
        segment=segment,
    )
    # imports torch: what was given is checked first
    device = how["device"]
    devices = bulk_ray.devices(device) if cluster and device != "auto" else devices_of(device)
    settings = replace(settings, device=devices[0].partition(":")[0])
    job = Job(settings, output, listed.root, weights, how["memory_limit"])
    plan = Plan(listed, settings)
    if dry_run:
        from ..bulk.run import forecast

        found = {"written": [], **forecast(job, plan, devices[0], len(devices))}
        options.report(found, quiet=quiet, as_json=as_json)
        return
    summary = _run(job, plan, devices, cluster, part, max_errors, retry=retry, quiet=quiet)
    options.report(summary, quiet=quiet, as_json=as_json)


def _run(
    job: "Job",
    plan: "Plan",
    devices: list[str],
    cluster: "Cluster | None",
    shard: tuple[int, int],
    max_errors: int | None,
    *,
    retry: bool,
    quiet: bool,
) -> dict[str, Any]:
    from ..bulk.run import BulkRun
    from .bulk_progress import watched_bulk

    run = BulkRun(job, plan, shard, max_errors, retry=retry)
    kind = devices[0].partition(":")[0]
    try:
        with watched_bulk(len(devices), kind, quiet=quiet) as progress:
            engine = bulk_ray.ray_engine(cluster, progress) if cluster else _local_engine(devices)
            where = f"{kind} on Ray" if cluster else ", ".join(devices)
            summary = run.run(engine, where, progress)
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; {len(run.markers)} of {len(plan)} segments are done; the same command "
            "resumes the run",
            err=True,
        )
        raise typer.Exit(130) from None
    names = ("segments", "segments_planned", "clips", "flows", "failed", "cuts", "bytes")
    return {
        "written": [job.out],
        **{name: summary[name] for name in names},
        "new_rows": progress.new,
        "seconds": progress.seconds,
        "flows_per_second": progress.rate,
        f"{'gpu' if kind == 'cuda' else kind}_hours": progress.hours,
    }


def _local_engine(devices: list[str]) -> "Engine":
    from ..bulk.local import run_local

    return lambda job, plan, numbers, watch: run_local(job, plan, numbers, devices, watch)


def _parse_shard(text: str) -> tuple[int, int]:
    from ..errors import InputError

    place, slash, total = text.partition("/")
    if not (slash and place.isdecimal() and total.isdecimal() and 1 <= int(place) <= int(total)):
        raise InputError(f"--shard is I/N, with I from 1 to N, got {text!r}")
    return int(place), int(total)


def _check_output(output: str, manifest: str) -> None:
    from ..bulk.storage import is_address, local_path
    from ..errors import InputError
    from .outputs import check_outputs

    if is_address(output):
        return
    folder, source = local_path(output).resolve(), local_path(manifest).resolve()
    check_outputs(folders=[folder])
    if source.is_dir() and (source == folder or source in folder.parents):
        raise InputError(f"{output} is in the folder that is listed; write elsewhere")


def _table(name: str, *, quiet: bool) -> str:
    from ..bulk.tables import has_parquet

    if name != "auto":
        return name
    if has_parquet():
        return "parquet"
    if not quiet:
        typer.echo("pyarrow is not installed: the tables are written as .csv", err=True)
    return "csv"


def _decoder(name: str, *, quiet: bool) -> str:
    if name != "auto":
        return name
    if find_spec("av") is not None:
        return "pyav"
    if not quiet:
        typer.echo("PyAV is not installed: videos are read with OpenCV", err=True)
    return "opencv"


def devices_of(name: str) -> list[str]:
    """Every GPU if none is named, or one device."""
    import torch

    from ..estimation.compute import choose_device

    device = choose_device(name)
    if name in ("auto", "cuda") and device.type == "cuda" and torch.cuda.device_count() > 1:
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(device)]
