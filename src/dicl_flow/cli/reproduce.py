"""The command `reproduce`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from ..training.chain import Stage


def reproduce(
    target: Annotated[
        str, typer.Argument(help="The last data set: chairs, things, sintel, kitti; or all.")
    ] = "all",
    data: options.Data = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder with one run folder per stage; default: runs/reproduce.",
        ),
    ] = None,
    without_projection: Annotated[
        bool, typer.Option("--without-projection", help='The paper\'s "Ours w/o DAP".')
    ] = False,
    start_from: options.StartFrom = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of all stages, or of one: things:steps=100000."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the stages, data and time; train nothing.")
    ] = False,
    device: options.Device = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train the stages of the paper, each from the best (or last) weights of the one before.

    Before it starts, a few steps of each stage are taken to estimate the time. The same command
    resumes a chain that was interrupted; stages that have finished are skipped.

    Examples:

      dicl-flow reproduce things --data chairs=Chairs --data things-clean=FlyingThings3D_subset

      dicl-flow reproduce all --dry-run --data chairs=FlyingChairs_release

      dicl-flow reproduce chairs --without-projection --data chairs=FlyingChairs_release
    """
    from ..data import parse_data_argument
    from ..training.chain import check_needs, plan_chain

    roots = dict(parse_data_argument(argument) for argument in data or [])
    default = "reproduce-without-projection" if without_projection else "reproduce"
    folder = output or Path("runs") / default
    chosen = with_start(changes or [], start_from)
    stages = plan_chain(target, folder, chosen, without_projection=without_projection)
    if not dry_run:
        check_needs(stages, roots)

    # torch, which takes seconds: after all that may be missing
    from ..estimation.compute import choose_device
    from ..training import join, leave
    from ..training.chain_run import describe_chain, train_chain

    processes = join(choose_device(device))
    silent = quiet or not processes.is_first
    tell = (lambda line: None) if silent else partial(typer.echo, err=True)
    trained = [] if dry_run else [stage for stage in stages if not stage.finished]
    try:
        plan = describe_chain(stages, roots, processes, tell)
        if not (silent or as_json):
            print_plan(plan)
        signal = train_chain(trained, roots, processes, tell, quiet=silent)
    finally:
        leave(processes)
    if processes.is_first:
        _conclude(plan, stages, trained, signal, quiet=quiet, as_json=as_json)
    if signal is not None:
        raise typer.Exit(128 + signal)


def with_start(changes: Sequence[str], start_from: str | None) -> list[str]:
    """Return the changes with the value of --start-from, if it was given."""
    return [*changes, *([f"start_from={start_from}"] if start_from else [])]


def print_plan(plan: Mapping[str, Any], what: str = "in all") -> None:
    """Print the stages of a plan, their data, and the time."""
    for stage in plan["stages"]:
        done = f"{stage['steps_done']:,} of " if stage["steps_done"] else ""
        if stage["finished"]:
            typer.echo(f"{stage['name']:<9} finished, {stage['steps']:,} steps")
            continue
        typer.echo(
            f"{stage['name']:<9} {done}{stage['steps']:,} steps of {stage['batch']} pairs, "
            f"{stage['pairs']:,} pairs in all, {_hours(stage['seconds'])}"
        )
        for need in stage["data"]:
            found = need["problem"] or f"{need['pairs']:,} pairs in {need['root']}"
            typer.echo(f"{'':<9}   {need['name']}: {_as_flags(found)}")
    gpu = "" if plan["gpu_hours"] is None else f", {plan['gpu_hours']:.1f} GPU-hours"
    typer.echo(f"{what}: {_hours(plan['seconds'])}{gpu}, estimated from a few steps of each stage")


def _as_flags(text: str) -> str:
    from .flags import as_flags

    return as_flags(text)


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown without the data"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _conclude(
    plan: Mapping[str, Any],
    stages: Sequence["Stage"],
    trained: Sequence["Stage"],
    signal: int | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Print the results of the stages that have finished."""
    results = {stage.config.name: stage.finished for stage in stages if stage.finished}
    if as_json:
        folders = [stage.folder for stage in trained]
        files = [path for run in folders for path in (run.best, run.weights) if path.is_file()]
        end = {"finished": len(results) == len(stages), "signal": signal}
        document = {**plan, **end, "results": results, "written": files}
        options.report(document, quiet=quiet, as_json=True)
    elif trained and not quiet:
        for stage in trained:
            found = results.get(stage.config.name)
            told = "stopped; the same command resumes it" if found is None else _best(found)
            typer.echo(f"{stage.config.name:<9} {told}")


def _best(record: Mapping[str, Any]) -> str:
    if record["best_step"] is None:
        return "finished"
    return f"finished, best: step {record['best_step']:,}, {record['best_epe']:.2f} px"
