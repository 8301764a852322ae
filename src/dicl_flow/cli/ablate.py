"""The command `ablate`."""

from collections.abc import Iterable
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


def ablate(
    study: Annotated[str, typer.Argument(help="metrics, projection or hosts.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for all results.")
    ],
    data: options.Data = None,
    pairs: Annotated[int, typer.Option(min=1, help="Training pairs per variant.")] = 50_000,
    seed: Annotated[int, typer.Option(min=0, max=1_000_000, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to train each variant with.")] = 1,
    scenes: Annotated[int, typer.Option(min=1, help="Held-out scenes to score on.")] = 64,
    recipe: Annotated[str, typer.Option(help="Packaged name, or a .toml file.")] = "ablation",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of the recipe: backend=plain."),
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

    Examples:

      dicl-flow ablate metrics --data rendered=PHOTOS --data sintel-clean=Sintel -o runs/ablation

      dicl-flow ablate metrics --data kitti15=KITTI2015 -o runs/ablation

      dicl-flow ablate projection --seeds 3 --pairs 20000 --data rendered=PHOTOS -o runs/ablation
    """
    from dataclasses import replace

    from ..data import list_pairs, parse_data_argument
    from ..lab.variants import list_variants
    from ..training import check_roots, read_recipe

    base = read_recipe(recipe, changes or [])
    base = replace(base, steps=-(-pairs // base.batch))
    variants = list_variants(study, base, range(seed, seed + seeds))
    roots = dict(parse_data_argument(argument, also="rendered") for argument in data or [])
    trained_on = {entry.name for entry in base.data}
    others = {name: root for name, root in roots.items() if name not in trained_on}
    if trained_on & roots.keys():
        check_roots(base, roots)
    sets = {name: list_pairs(name, root, needs_truth=True) for name, root in others.items()}

    from ..estimation.compute import choose_device  # torch: after all that may be missing
    from ..lab.ablation_report import finished_variants, report_study
    from ..pictures.figures import draw_figure

    place = choose_device(device)
    draw_figure(1, 1)  # complain now if there is no matplotlib
    check_outputs(folders=[output])
    if trained_on & roots.keys():
        output.mkdir(parents=True, exist_ok=True)
        _train(variants, roots, output, scenes, place, quiet)
    finished = finished_variants(variants, output)
    for name, listed in sets.items():
        _evaluate(finished, name, listed, output, device, quiet)
    report = report_study(study, finished_variants(variants, output), output)
    _write_report(report, quiet=quiet, as_json=as_json)


def _train(
    variants: "list[Variant]",
    roots: dict[str, Path],
    output: Path,
    scenes: int,
    device: "torch.device",
    quiet: bool,
) -> None:
    """Train the variants that are not finished; a signal stops the command with its code."""
    from ..lab.ablation import VariantFolder, open_laboratory

    missing = [v for v in variants if VariantFolder(output, v).read() is None]
    if not missing:
        return
    config = missing[0].config
    laboratory = open_laboratory(output, config, roots, scenes, device, quiet=quiet)
    for variant in missing:
        if not quiet:
            typer.echo(f"{variant.name}, seed {variant.config.seed}: {variant.folder}", err=True)
        outcome = laboratory.train(variant)
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
