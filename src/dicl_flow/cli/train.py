"""The command `train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from ..training import Outcome, RunFolder


def train(
    recipe: Annotated[str, typer.Argument(help="Packaged name, or a .toml file.")],
    data: options.Data = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of the recipe: optimizer.learning_rate=1e-4."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Run folder; default: runs/ and the recipe's name.",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="Weights to start from, or 'random'; default: those of the stage the recipe names."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --output.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="Stop after N minutes; the schedule is scaled to fit."),
    ] = None,
    overfit: Annotated[
        int | None, typer.Option(help="Train on N fixed samples until they fit.")
    ] = None,
    device: options.Device = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train a network with a recipe: a stage of the paper, or your own.

    Examples:

      dicl-flow train chairs-0 --data chairs=FlyingChairs_release

      dicl-flow train finetune --data pairs=my-data --init weights.safetensors --minutes 60

      dicl-flow train rendered-0 --data rendered=PHOTOS --minutes 9

      dicl-flow train chairs-0 --data chairs=FlyingChairs_release --overfit 8

      torchrun --nproc-per-node 8 -m dicl_flow train chairs-0 --data chairs=FlyingChairs_release
    """
    from ..data import parse_data_argument
    from ..errors import InputError
    from ..training import RunFolder, check_roots, read_recipe
    from ..training.start import find_start

    if minutes is not None and not minutes > 0:
        raise InputError(f"--minutes must be positive, got {minutes}")
    config = read_recipe(recipe, changes or [])
    roots = dict(parse_data_argument(argument, also="rendered") for argument in data or [])
    name = config.name if overfit is None else f"{config.name}-overfit"
    folder = RunFolder(output or Path("runs") / name)
    fixed = overfit is not None
    if resume:
        folder.check_resumable()
        initial = None
    elif fixed and init is None:
        initial = None  # the question is whether the samples can be learned, from any start
    else:
        initial = find_start(config, folder.path, init)
    check_roots(config, roots)

    # torch, which takes seconds: after all that may be missing
    from ..estimation.compute import choose_device
    from ..training import FixedSource, Limits, Validation, join, leave, open_source
    from ..training import train as run_training

    chosen = choose_device(device)
    source = FixedSource(config, roots, overfit or 0) if fixed else open_source(config, roots)
    processes = join(chosen)
    try:
        outcome = run_training(
            config,
            source,
            folder,
            processes,
            initial=initial,
            resume=resume,
            limits=Limits(minutes, 0.5 if fixed else None),
            validation=None if fixed else Validation.of(config, roots),
            quiet=quiet or not processes.is_first,
        )
    finally:
        leave(processes)
    if processes.is_first:
        _conclude(outcome, folder, quiet=quiet, as_json=as_json)
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)


def _conclude(outcome: "Outcome", folder: "RunFolder", *, quiet: bool, as_json: bool) -> None:
    """Print how the run ended."""
    import math

    best = outcome.validated
    summary = {
        "finished": outcome.finished,
        "step": outcome.step,
        "epe": outcome.epe if math.isfinite(outcome.epe) else None,
        **best.best(),
        "signal": outcome.signal,
        "written": [folder.weights, folder.checkpoint, *([folder.best] if best.best_step else [])],
    }
    if as_json:
        options.report(summary, quiet=quiet, as_json=True)
    elif not quiet:
        end = "finished" if outcome.finished else "stopped; resume with --resume"
        typer.echo(f"{end}: step {outcome.step}, EPE {outcome.epe:.2f} px, in {folder.path}")
        if best.best_step:
            found = f"{best.best_epe:.2f} px in validation"
            typer.echo(f"best: step {best.best_step}, {found}, {folder.best.name}")
