"""Commands that train: `train` for one recipe, `reproduce` for the stages of the paper."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError
from . import options
from .inputs_outputs import parse_roots
from .messages import as_flags

if TYPE_CHECKING:
    import torch

    from ..training import Outcome, Processes, RunFolder
    from ..training.chain import Stage

STOPPED = "stopped; the same command resumes it"


@contextmanager
def joined(device: "torch.device") -> "Iterator[Processes]":
    """Join the other processes of torchrun, if there are any, and leave them at the end."""
    from ..training import join, leave

    processes = join(device)
    try:
        yield processes
    finally:
        leave(processes)


def line_printer(*, silent: bool) -> Callable[[str], None]:
    """Return what prints a line of progress to stderr."""
    return (lambda line: None) if silent else partial(typer.echo, err=True)


class Train(options.Settings):
    """Train a network with a recipe: a stage of the paper, or your own.

    Examples:

      dicl-flow train chairs-0 --data chairs=FlyingChairs_release

      dicl-flow train finetune --data pairs=my-data --init weights.safetensors --minutes 60

      dicl-flow train rendered-0 --data rendered=PHOTOS --minutes 9

      dicl-flow train chairs-0 --data chairs=FlyingChairs_release --overfit 8

      torchrun --nproc-per-node 8 -m dicl_flow train chairs-0 --data chairs=FlyingChairs_release
    """

    recipe: str = Argument(..., help="Packaged name, or a .toml file.")
    data: options.Data = None
    changes: list[str] | None = Option(
        None, "--set", help="Change a key of the recipe: optimizer.learning_rate=1e-4."
    )
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="DIR",
        help="Run folder; default: runs/ and the recipe's name.",
    )
    init: str | None = Option(
        None,
        help="Weights to start from, or 'random'; default: those of the stage the recipe names.",
    )
    resume: bool = Option(False, "--resume", help="Resume the run in --output.")
    minutes: float | None = Option(
        None, metavar="N", help="Stop after N minutes; the schedule is scaled to fit."
    )
    overfit: int | None = Option(None, help="Train on N fixed samples until they fit.")
    device: options.Device = "auto"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..training import RunFolder, check_roots, read_recipe
        from ..training.recipe import find_start

        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"--minutes must be positive, got {self.minutes}")
        config = read_recipe(self.recipe, self.changes or [])
        roots = parse_roots(self.data, also="rendered")
        fixed = self.overfit is not None
        name = f"{config.name}-overfit" if fixed else config.name
        folder = RunFolder(self.output or Path("runs") / name)
        initial = None
        if self.resume:
            folder.check_resumable()
        elif self.init is not None or not fixed:  # fixed samples are to be learned from any start
            initial = find_start(config, folder.path, self.init)
        check_roots(config, roots)

        # torch, which takes seconds: after all that may be missing
        from ..estimation.compute import choose_device
        from ..training import FixedSource, Limits, Validation, open_source, train

        device, count = choose_device(self.device), self.overfit or 0
        source = FixedSource(config, roots, count) if fixed else open_source(config, roots)
        with joined(device) as processes:
            outcome = train(
                config,
                source,
                folder,
                processes,
                initial=initial,
                resume=self.resume,
                limits=Limits(self.minutes, 0.5 if fixed else None),
                validation=None if fixed else Validation.of(config, roots),
                quiet=self.quiet or not processes.is_first,
            )
        if processes.is_first:
            self._conclude(outcome, folder)
        if outcome.signal is not None:
            raise typer.Exit(128 + outcome.signal)

    def _conclude(self, outcome: "Outcome", folder: "RunFolder") -> None:
        """Print how the run ended."""
        best = outcome.validated
        files = [folder.weights, folder.checkpoint, *([folder.best] if best.best_step else [])]
        if self.as_json:
            summary = {
                "finished": outcome.finished,
                "step": outcome.step,
                "epe": outcome.epe if math.isfinite(outcome.epe) else None,
                **best.best(),
                "signal": outcome.signal,
                "written": files,
            }
            self.report(summary)
        elif not self.quiet:
            end = "finished" if outcome.finished else "stopped; resume with --resume"
            typer.echo(f"{end}: step {outcome.step}, EPE {outcome.epe:.2f} px, in {folder.path}")
            if best.best_step:
                found = f"{best.best_epe:.2f} px in validation"
                typer.echo(f"best: step {best.best_step}, {found}, {folder.best.name}")


class Reproduce(options.Settings):
    """Train the stages of the paper, each from the best (or last) weights of the one before.

    Before it starts, a few steps of each stage are taken to estimate the time. The same command
    resumes a chain that was interrupted; stages that have finished are skipped.

    Examples:

      dicl-flow reproduce things --data chairs=Chairs --data things-clean=FlyingThings3D_subset

      dicl-flow reproduce all --dry-run --data chairs=FlyingChairs_release

      dicl-flow reproduce chairs --without-projection --data chairs=FlyingChairs_release
    """

    target: str = Argument("all", help="The last data set: chairs, things, sintel, kitti; or all.")
    data: options.Data = None
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="DIR",
        help="Folder with one run folder per stage; default: runs/reproduce.",
    )
    without_projection: bool = Option(
        False, "--without-projection", help='The paper\'s "Ours w/o DAP".'
    )
    start_from: options.StartFrom = None
    changes: list[str] | None = Option(
        None, "--set", help="Change a key of all stages, or of one: things:steps=100000."
    )
    dry_run: bool = Option(
        False, "--dry-run", help="Print the stages, data and time; train nothing."
    )
    device: options.Device = "auto"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..training.chain import check_needs, plan_chain

        roots = parse_roots(self.data)
        default = "reproduce-without-projection" if self.without_projection else "reproduce"
        stages = plan_chain(
            self.target,
            self.output or Path("runs") / default,
            with_start(self.changes or [], self.start_from),
            without_projection=self.without_projection,
        )
        if not self.dry_run:
            check_needs(stages, roots)

        # torch, which takes seconds: after all that may be missing
        from ..estimation.compute import choose_device
        from ..training.chain import describe_chain, train_chain

        trained = [] if self.dry_run else [stage for stage in stages if not stage.finished]
        with joined(choose_device(self.device)) as processes:
            silent = self.quiet or not processes.is_first
            print_line = line_printer(silent=silent)
            plan = describe_chain(stages, roots, processes, print_line)
            if not (silent or self.as_json):
                print_plan(plan)
            signal = train_chain(trained, roots, processes, print_line, quiet=silent)
        if processes.is_first:
            self._conclude(plan, stages, trained, signal)
        if signal is not None:
            raise typer.Exit(128 + signal)

    def _conclude(
        self,
        plan: Mapping[str, Any],
        stages: Sequence["Stage"],
        trained: Sequence["Stage"],
        signal: int | None,
    ) -> None:
        """Print the results of the stages that have finished."""
        results = {stage.config.name: stage.finished for stage in stages if stage.finished}
        if self.as_json:
            folders = [stage.folder for stage in trained]
            files = [path for run in folders for path in (run.best, run.weights) if path.is_file()]
            end = {"finished": len(results) == len(stages), "signal": signal}
            self.report({**plan, **end, "results": results, "written": files})
        elif not self.quiet:
            for stage in trained:
                found = results.get(stage.config.name)
                typer.echo(f"{stage.config.name:<9} {STOPPED if found is None else _best(found)}")


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
            typer.echo(f"{'':<9}   {need['name']}: {as_flags(found)}")
    gpu = "" if plan["gpu_hours"] is None else f", {plan['gpu_hours']:.1f} GPU-hours"
    typer.echo(f"{what}: {_hours(plan['seconds'])}{gpu}, estimated from a few steps of each stage")


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown without the data"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _best(record: Mapping[str, Any]) -> str:
    if record["best_step"] is None:
        return "finished"
    return f"finished, best: step {record['best_step']:,}, {record['best_epe']:.2f} px"
