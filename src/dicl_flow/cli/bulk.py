"""The commands under `bulk`: `run`, `list` and `verify`."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError, counted
from . import options
from .command import Group
from .inputs_outputs import check_outputs
from .options import flag, in_time, make_bar, optional, showing

if TYPE_CHECKING:
    from ..bulk import job
    from ..bulk.engines import Cluster
    from ..bulk.job import Plan
    from ..bulk.manifest import Manifest
    from ..bulk.run import BulkRun, Engine
    from ..bulk.writing import Outcome, Watch


class BulkGroup(Group):
    """Commands under one name; `bulk MANIFEST` is `bulk run MANIFEST`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


class Run(options.EstimateSettings):
    """Estimate all pairs and clips of MANIFEST.

    The same command resumes a run that was stopped or killed, and computes only what is missing.
    What cannot be read is a row of the table with its error; the reasons are listed at the end, and
    the exit code is 3.

    Examples:
      dicl-flow bulk manifest.parquet -o out
      dicl-flow bulk 'clips/*.mp4' -o out --fields npy --grid 8
      dicl-flow bulk manifest.csv -o out --shard 3/64
      dicl-flow bulk manifest.csv -o out --ray auto --actors 2:16
      dicl-flow bulk manifest.csv -o out --dry-run
    """

    manifest: str = Argument(..., help="Manifest (.csv, .parquet), folder tree, 'glob' or video.")
    output: str = options.output("Folder, or address as s3://….")
    no_scores: bool = flag("--no-scores", "Write no tables of flows and of clips.")
    table: str = Option("auto", help="Tables are parquet or csv; auto: what is installed.")
    fields: str = Option("", metavar="npy|png", help="Write fields as tar shards: fp16, or KITTI.")
    grid: int = Option(1, help="Fields are means over squares of N px.")
    flows: str = Option("", metavar="FORMAT", help="Write a file for each flow: flo, npz, png …")
    occlusion: bool = flag("--occlusion", "Estimate both directions: the occluded share.")
    min_confidence: options.MinConfidence = None
    decoder: str = Option("auto", help="Reads videos: pyav or opencv; auto: what is installed.")
    segment: int = Option(256, help="Flows that are written at a time.")
    shard: str = Option("1/1", metavar="I/N", help="Compute part I of N.")
    max_errors: int | None = optional("Accept so many failed flows; stop if there are more.", min=0)
    retry: bool = flag("--retry", "Compute segments with failed flows again.")
    ray: str | None = optional(
        "Compute on a Ray cluster: a new one here, the one of this machine, or another.",
        "--ray",
        metavar="[auto|HOST:PORT]",
    )
    actors: str | None = optional("Processes on Ray; default: all that fit.", metavar="N|MIN:MAX")
    cpus_per_actor: float | None = optional("Cores and threads of each; default: 1.")
    gpus_per_actor: float | None = optional("GPUs of each, or a share of one; default: 1.")
    dry_run: bool = flag("--dry-run", "Only print the estimated flows, bytes and hours.")
    full_size: options.FullSize = False

    def __call__(self) -> None:
        from ..bulk.job import Job, Plan
        from ..bulk.manifest import read_manifest

        shard = _parse_shard(self.shard)
        cluster = parse_cluster(self.ray, self.actors, self.cpus_per_actor, self.gpus_per_actor)
        _check_output(self.output, self.manifest)
        digest = _digest(self.weights)
        listed = read_manifest(self.manifest)
        settings = self._settings(digest, listed)
        # imports torch: what was given is checked first
        devices = _cluster_devices(self.device) if cluster else _devices(self.device)
        settings = dataclasses.replace(settings, device=_kind(devices))
        limit = options.in_bytes(self.memory_limit)
        job = Job(settings, self.output, listed.root, self.weights, limit)
        plan = Plan(listed, settings)

        from ..bulk.run import BulkRun, forecast

        if self.dry_run:
            self.report({"written": [], **forecast(job, plan, devices[0], len(devices))})
        else:
            run = BulkRun(job, plan, shard, self.max_errors, retry=self.retry)
            self._run(run, devices, cluster)

    def _settings(self, digest: str, listed: "Manifest") -> "job.Settings":
        """Return what is stored with the output: every option that it has under the same name."""
        from ..bulk.job import Settings
        from ..bulk.storage import has_parquet

        table, decoder = self.table, self.decoder
        if table == "auto":
            table = "parquet" if has_parquet() else "csv"
            if table == "csv" and not (self.quiet or self.no_scores):
                typer.echo("pyarrow is not installed: the tables are written as .csv", err=True)
        if decoder == "auto":
            decoder = "pyav" if find_spec("av") else "opencv"
            if decoder == "opencv" and not self.quiet and listed.has_clips():
                typer.echo("PyAV is not installed: videos are read with OpenCV", err=True)
        names = {field.name for field in dataclasses.fields(Settings)} & {*self.option_types()}
        changed = {"weights": digest, "scores": not self.no_scores, "table": table}
        changed |= {"decoder": decoder, "device": "cpu"}  # the device is known later
        return Settings(**(self.chosen(*names) | changed))

    def _run(self, run: "BulkRun", devices: list[str], cluster: "Cluster | None") -> None:
        """Compute what is missing, and report on the whole output."""
        kind = _kind(devices)
        try:
            with show_progress(len(devices), kind, quiet=self.quiet) as progress:
                where = f"{kind} on Ray" if cluster else ", ".join(devices)
                summary = run.run(_engine(devices, cluster, progress), where, progress)
        except KeyboardInterrupt:
            done = f"{len(run.markers)} of {counted(len(run.plan), 'segment')} done"
            typer.echo(f"stopped; {done}; the same command resumes the run", err=True)
            raise typer.Exit(130) from None
        names = ("segments", "segments_planned", "clips", "flows", "failed", "cuts", "bytes")
        reasons = summary.get("reasons", [])  # an earlier version counted none
        found = {
            "written": [run.job.out],
            **{name: summary[name] for name in names},
            **({"reasons": reasons} if self.as_json else {}),
            "new_rows": progress.new,
            "seconds": progress.seconds,
            "flows_per_second": progress.rate,
            f"{'gpu' if kind == 'cuda' else kind}_hours": progress.hours,
        }
        self.report(found)
        self._report_failures(summary["failed"], reasons)

    def _report_failures(self, failed: int, reasons: Sequence[Sequence[Any]]) -> None:
        """Print why flows failed; if that was not accepted beforehand, the exit code is 3."""
        accepted = self.max_errors is not None  # a run with more would have been stopped
        if not failed or (accepted and self.quiet):
            return
        for count, clip, status in reasons:
            flows = "1 flow," if count == 1 else f"{count} flows, for example"
            typer.echo(f"failed: {flows} {clip}: {status}", err=True)
        if not accepted:
            advice = f"--retry computes them again, --max-errors {failed} accepts them"
            typer.echo(f"{failed} failed in all; {advice}", err=True)
            raise typer.Exit(3)


def _parse_shard(text: str) -> tuple[int, int]:
    place, slash, total = text.partition("/")
    if not (slash and place.isdecimal() and total.isdecimal() and 1 <= int(place) <= int(total)):
        raise InputError(f"--shard must be I/N, with I from 1 to N, got {text!r}")
    return int(place), int(total)


def _check_output(output: str, manifest: str) -> None:
    from ..bulk.storage import is_address, local_path

    if is_address(output):
        return
    folder, source = local_path(output).resolve(), local_path(manifest).resolve()
    check_outputs(folders=[folder])
    if source.is_dir() and (source == folder or source in folder.parents):
        raise InputError(f"{output} is in the folder that is listed; write elsewhere")


def _digest(weights: str | None) -> str:
    from ..bulk.job import sha256_of
    from ..weights import resolve

    return sha256_of(resolve(weights))


# --- where to compute -----------------------------------------------------------------------------


def _devices(name: str) -> list[str]:
    """Every GPU if none is named, or one device."""
    import torch

    from ..estimation.compute import choose_device

    device = choose_device(name)
    if name in ("auto", "cuda") and device.type == "cuda" and torch.cuda.device_count() > 1:
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(device)]


def _cluster_devices(name: str) -> list[str]:
    """The kind of the devices of a cluster, which this machine need not have if it is named."""
    if name == "auto":
        return _devices(name)
    if name not in ("cpu", "cuda"):
        raise InputError(f"on a cluster, --device must be cpu or cuda, got {name!r}")
    return [name]


def _kind(devices: list[str]) -> str:
    return devices[0].partition(":")[0]


def parse_cluster(
    address: str | None, actors: str | None, cpus: float | None, gpus: float | None
) -> "Cluster | None":
    """Return the Ray cluster to compute on, or None for this machine alone."""
    from ..bulk.engines import Cluster, ray_library

    asked = {"--actors": actors, "--cpus-per-actor": cpus, "--gpus-per-actor": gpus}
    if address is None:
        for option in (option for option, value in asked.items() if value is not None):
            raise InputError(f"{option} is for --ray, which is not given")
        return None
    pool: tuple[int, int | None] = (1, None)
    if actors is not None:
        fewest, _, most = actors.partition(":")
        if not (fewest.isdecimal() and (most or fewest).isdecimal()):
            raise InputError(f"--actors must be a number, or MIN:MAX, got {actors!r}")
        pool = (int(fewest), int(most or fewest))
    cluster = Cluster(address, pool, 1.0 if cpus is None else cpus, 1.0 if gpus is None else gpus)
    ray_library()
    return cluster


def _engine(devices: list[str], cluster: "Cluster | None", progress: "BulkProgress") -> "Engine":
    """Return what computes: this machine, or a cluster, whose hours of computing are counted."""
    from ..bulk.engines import run_local, run_ray

    def run(
        job: "job.Job", plan: "Plan", numbers: Sequence[int], watch: "Watch"
    ) -> "Iterator[Outcome]":
        if cluster is None:
            yield from run_local(job, plan, numbers, devices, watch)
            return
        share = cluster.gpus if job.settings.device == "cuda" else cluster.cpus
        progress.busy = 0.0
        for outcome in run_ray(job, plan, numbers, cluster, watch):
            progress.busy += outcome.seconds * share
            yield outcome

    return run


# --- progress -------------------------------------------------------------------------------------


class BulkProgress:
    """Counts flows; the plan knows how many are left, as far as the manifest says."""

    def __init__(self, devices: int, unit: str, show: "Callable[[BulkProgress], None]") -> None:
        self._devices, self._unit, self._show = devices, unit, show
        self._start = perf_counter()
        self.busy: float | None = None  # seconds of devices that come and go
        self._total = self._left = self._open = self.new = 0
        self._counts: dict[int, int] = {}

    def begin(self, plan: "Plan", done: Mapping[str, Any], left: Sequence[int]) -> None:
        self._counts = {number: plan.count(number) for number in left}
        self._left = sum(self._counts.values())
        self._total = self._left + sum(marker["flows"] for marker in done.values())
        self._start = perf_counter()

    def flows(self, number: int) -> None:
        self._open += number
        self.new += number
        self._show(self)

    def segment(self, segment: int, marker: Mapping[str, Any]) -> None:
        """Note that a segment is finished: its flows need not be guessed any more."""
        self._left -= self._counts.pop(segment)
        self._open = max(0, self._open - marker["flows"] - marker["failed"])

    @property
    def seconds(self) -> float:
        return perf_counter() - self._start

    @property
    def rate(self) -> float:
        """Flows per second."""
        return self.new / max(self.seconds, 1e-9)

    @property
    def hours(self) -> float:
        """Hours of all devices together."""
        return (self.seconds * self._devices if self.busy is None else self.busy) / 3600

    @property
    def left(self) -> int:
        return max(0, self._left - self._open)

    @property
    def share(self) -> float:
        """The share of the flows that are done, from 0 to 1."""
        return 1 - self.left / self._total if self._total else 1.0

    def line(self) -> str:
        """The progress so far: "40.0% done, 12.3 flows/s, about 3 min left, 0.02 GPU-hours"."""
        text = f"{self.share:.1%} done, {self.rate:.3g} flows/s"
        if self.new:
            text += f", about {in_time(self.left / self.rate)} left"
        return f"{text}, {self.hours:.2f} {self._unit}-hours"


@contextmanager
def show_progress(devices: int, kind: str, *, quiet: bool) -> Iterator[BulkProgress]:
    """Show a bar, or a line every half minute."""
    from rich.progress import BarColumn, TextColumn

    bar = make_bar("flows", BarColumn(), TextColumn("{task.description}"))
    task = bar.add_task("", total=1.0)

    def show(progress: BulkProgress) -> None:
        bar.update(task, completed=progress.share, description=progress.line())

    progress = BulkProgress(devices, "GPU" if kind == "cuda" else kind.upper(), show)
    with showing(bar, progress.line, quiet=quiet):
        yield progress


# --- manifests and outputs ------------------------------------------------------------------------


class ListClips(options.Settings):
    """Write a manifest: a row for each video, and for each folder of frames.

    Examples:
      dicl-flow bulk list footage -o manifest.parquet
      dicl-flow bulk list 'footage/**/*.mp4' -o manifest.csv --no-count
    """

    folder: str = Argument(..., help="Folder tree, 'glob' or address.")
    output: Path = options.output("Manifest to write, .csv or .parquet.")
    no_count: bool = flag("--no-count", "Do not open each clip for its number of flows.")

    def __call__(self) -> None:
        from ..bulk.manifest import MANIFEST_SUFFIXES, read_manifest, with_flows, write_manifest
        from ..bulk.storage import check_table

        check_outputs([self.output], endings=MANIFEST_SUFFIXES)
        check_table(self.output.suffix[1:].lower())
        listed: Manifest = read_manifest(self.folder)
        rows = listed.rows(0, len(listed))
        if not self.no_count:
            rows = [with_flows(row, row.path) for row in self.track(rows, "opening")]
        write_manifest(self.output, rows)
        flows = sum(row.expected() for row in rows)
        self.report({"written": [self.output], "clips": len(rows), "flows": flows})


class Verify(options.Settings):
    """Read an output again: check all files, and compute some flows again.

    What is wrong is listed, and the exit code is 2.
    """

    output: str = Argument(..., metavar="OUT", help="The output of a run.")
    repair: bool = flag("--repair", "Let the next run compute damaged segments again.")
    samples: int = Option(3, min=0, help="Flows to compute again.")
    weights: options.Weights = None
    device: options.Device = "auto"
    memory_limit: options.MemoryLimit = None

    def __call__(self) -> None:
        from ..bulk.job import Job, read_settings
        from ..bulk.storage import open_storage

        storage = open_storage(self.output)
        settings, about = read_settings(storage, self.output)
        if self.samples and _digest(self.weights) != settings.weights:
            raise InputError(
                f"{self.output} was computed with other weights; give those with the sha256 "
                f"{settings.weights}, or --samples 0"
            )
        from ..bulk.run import check_files, check_samples, repair

        limit = options.in_bytes(self.memory_limit)
        job = Job(settings, self.output, about["root"], self.weights, limit)
        report = check_files(storage, about["segments"])
        if self.repair:
            repair(storage, report)
        if self.samples:
            check_samples(storage, job, _devices(self.device)[0], self.samples, report)
        found = {"written": [], "missing": report.missing, **dataclasses.asdict(report)}
        problems = found["problems"]
        if not self.as_json:
            found |= {name: len(found[name]) for name in ("problems", "damaged")}
        self.report(found)
        if problems or report.missing:
            for problem in problems[:100]:
                typer.echo(f"problem: {problem}", err=True)
            if report.damaged:
                how = "" if self.repair else "with --repair, "
                count = len(report.damaged)
                typer.echo(
                    f"damaged segments: {count}; {how}the next run computes them again", err=True
                )
            if report.missing:
                missing = f"missing: {counted(report.missing, 'segment')}"
                typer.echo(f"{missing}; the run is not finished", err=True)
            raise typer.Exit(2)
