"""The command `ablate`."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .outputs import check_outputs

if TYPE_CHECKING:
    import torch

    from ..data import FlowPair
    from ..lab.ablation_report import Report
    from ..lab.variants import Variant
    from ..training import Outcome

PROTOCOLS = ("rendered", "paper")


def ablate(
    study: Annotated[str, typer.Argument(help="metrics, projection, hosts, or figures.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for all results.")
    ],
    data: options.Data = None,
    protocol: Annotated[
        str,
        typer.Option(help="rendered: one short stage; paper: the stages of Chairs, then Things."),
    ] = "rendered",
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Training pairs per variant; default: the recipe's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=1_000_000, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to train each variant with.")] = 1,
    scenes: Annotated[
        int | None, typer.Option(min=1, help="Held-out scenes to score on; default: 64.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Packaged name, or a .toml file; default: ablation, or figures."),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(help="Weights to start from, for recipes that need them."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of the recipe: optimizer.precision=fp32."),
    ] = None,
    device: options.Device = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train and score the variants of one of the paper's ablations under equal conditions.

    All variants of a seed see the same pairs in the same order. Data sets that the recipe does
    not train on are scored; without the recipe's own, only what is finished already is scored.
    The same command resumes a study that was interrupted. At the end the folder holds STUDY.md,
    .json, .svg and .png, and the results and weights of each variant.

    --protocol paper trains each variant in the paper's stages and scores Chairs' validation split
    after those on Chairs, everything else at the end. --set changes all stages.

    The study figures trains the matchers (and DAP) alone, around the feature net and the context
    nets of --init (default: the packaged weights), and writes them as small weights files.

    Examples:

      dicl-flow ablate metrics --data rendered=PHOTOS --data sintel-clean=Sintel -o runs/ablation

      dicl-flow ablate metrics --data kitti15=KITTI2015 -o runs/ablation

      dicl-flow ablate projection --seeds 3 --pairs 20000 --data rendered=PHOTOS -o runs/ablation

      dicl-flow ablate hosts --protocol paper --data chairs=FlyingChairs_release -o runs/paper

      dicl-flow ablate figures --data rendered=PHOTOS -o runs/figures
    """
    from ..data import list_pairs, parse_data_argument
    from ..lab.variants import paper_variants, recipe_variants
    from ..training import check_roots

    of_paper = _is_paper(protocol, recipe=recipe, pairs=pairs, scenes=scenes, init=init)
    numbers = range(seed, seed + seeds)
    variants = (
        paper_variants(study, changes or [], numbers)
        if of_paper
        else recipe_variants(study, recipe, changes or [], pairs, init, numbers)
    )
    roots = dict(parse_data_argument(argument, also="rendered") for argument in data or [])
    stages = variants[0].stages
    trained_on = {entry.name for stage in stages for entry in stage.data}
    others = {name: root for name, root in roots.items() if name not in trained_on}
    if trained_on & roots.keys():
        for stage in stages:
            check_roots(stage, roots)
    if of_paper and "chairs" in roots:
        others.setdefault("chairs:val", roots["chairs"])
    sets = {name: list_pairs(name, root, needs_truth=True) for name, root in others.items()}

    from ..estimation.compute import choose_device  # torch: after all that may be missing
    from ..lab.ablation_report import finished_variants, report_study, small_files
    from ..pictures.figures import draw_figure

    place = choose_device(device)
    draw_figure(1, 1)  # complain now if there is no matplotlib
    check_outputs(folders=[output])
    if trained_on & roots.keys():
        output.mkdir(parents=True, exist_ok=True)
        _train(variants, roots, output, scenes, place, of_paper=of_paper, quiet=quiet)
    finished = finished_variants(variants, output)
    for name, listed in sets.items():
        _evaluate(finished, name, listed, output, device, quiet)
    report = report_study(study, finished_variants(variants, output), output)
    if study == "figures":
        report.contents.update(small_files(finished, output))
    _write_report(report, quiet=quiet, as_json=as_json)


def _is_paper(protocol: str, **others: object) -> bool:
    """Refuse unknown protocols, and options that the paper's does not have."""
    from ..errors import InputError, unknown_name

    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if protocol == "paper" and given:
        raise InputError(f"--protocol paper has its own recipes; leave out {', '.join(given)}")
    return protocol == "paper"


def _train(
    variants: "list[Variant]",
    roots: dict[str, Path],
    output: Path,
    scenes: int | None,
    device: "torch.device",
    *,
    of_paper: bool,
    quiet: bool,
) -> None:
    """Train the variants that are not finished; a signal stops the command with its code."""
    from ..lab.ablation import VariantFolder, open_laboratory
    from ..lab.paper_stages import train_stages

    missing = [v for v in variants if VariantFolder(output, v).read() is None]
    if not missing:
        return
    train: Callable[[Variant], Outcome]
    if of_paper:
        train = partial(train_stages, root=output, roots=roots, device=device, quiet=quiet)
    else:
        config = missing[0].config
        train = open_laboratory(output, config, roots, scenes or 64, device, quiet=quiet).train
    for variant in missing:
        if not quiet:
            typer.echo(f"{variant.name}, seed {variant.config.seed}: {variant.folder}", err=True)
        outcome = train(variant)
        if not outcome.finished:
            typer.echo("stopped; the same command resumes it", err=True)
            raise typer.Exit(128 + (outcome.signal or 0))


def _evaluate(
    variants: "Iterable[Variant]",
    data: str,
    pairs: "list[FlowPair]",
    output: Path,
    device: str,
    quiet: bool,
) -> None:
    from ..lab.ablation import evaluate_variant

    for variant in variants:
        watched = options.track(pairs, f"{variant.name} on {data}", quiet=quiet)
        if not evaluate_variant(variant, output, data, pairs, device, watched):
            place = output / variant.folder
            typer.echo(f"{variant.name} is not scored on {data}: no weights in {place}", err=True)


def _write_report(report: "Report", *, quiet: bool, as_json: bool) -> None:
    from rich.console import Console

    from ..evaluation import print_grid
    from ..files import write_files

    write_files(report.contents)
    if as_json:
        found = {**report.document, "written": [*report.contents]}
        options.report(found, quiet=quiet, as_json=True)
    elif not quiet:
        print_grid(report.grid, Console())
