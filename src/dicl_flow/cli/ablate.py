"""The command `ablate`."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .outputs import check_outputs
from .reproduce import print_plan, with_start

if TYPE_CHECKING:
    from ..config import TrainConfig
    from ..data import FlowPair
    from ..lab.ablation_report import Report
    from ..lab.variants import Variant
    from ..training import Processes
    from ..training.chain_run import Pace

PROTOCOLS = ("rendered", "paper")
_STOPPED = "stopped; the same command resumes it"


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
    names: Annotated[
        list[str] | None,
        typer.Option("--variant", metavar="NAME", help="Only this variant; repeatable."),
    ] = None,
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
    start_from: options.StartFrom = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a key of the recipe: optimizer.precision=fp32; of one stage of the "
            "paper: things:steps=100000.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the paper's stages, data and time; train and write nothing."
        ),
    ] = False,
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

    --protocol paper trains each variant in the stages of `reproduce`, with the learning rate of its
    host, and scores Chairs' validation split after those on Chairs, everything else at the end.

    The study figures trains the matchers (and DAP) and the last layers of the feature net, without
    context nets, from the feature net of --init (default: the packaged weights), and writes them
    as small weights files.

    Examples:

      dicl-flow ablate metrics --data rendered=PHOTOS --data sintel-clean=Sintel -o runs/ablation

      dicl-flow ablate metrics --data kitti15=KITTI2015 -o runs/ablation

      dicl-flow ablate projection --seeds 3 --pairs 20000 --data rendered=PHOTOS -o runs/ablation

      dicl-flow ablate hosts --protocol paper --data chairs=FlyingChairs_release -o runs/paper

      dicl-flow ablate metrics --protocol paper --variant DICL --dry-run -o runs/paper

      dicl-flow ablate figures --data rendered=PHOTOS -o runs/figures
    """
    from ..data import list_pairs, parse_data_argument
    from ..lab.variants import paper_variants, recipe_variants
    from ..training import check_roots

    rendered_only = {"recipe": recipe, "pairs": pairs, "scenes": scenes, "init": init}
    paper_only = {"start-from": start_from, "dry-run": dry_run or None}
    of_paper = _is_paper(protocol, rendered_only, paper_only)
    numbers, chosen = range(seed, seed + seeds), changes or []
    variants = (
        paper_variants(study, with_start(chosen, start_from), numbers, names or [])
        if of_paper
        else recipe_variants(
            study, recipe, chosen, numbers, pairs=pairs, initial=init, names=names or []
        )
    )
    roots = dict(parse_data_argument(argument, also="rendered") for argument in data or [])
    if dry_run:
        _print_plans(study, variants, roots, output, device, quiet=quiet, as_json=as_json)
        return
    trained_on = _trained_on(variants)
    others = {name: root for name, root in roots.items() if name not in trained_on}
    if trained_on & roots.keys() and of_paper:
        _check_needs(variants, roots, output)
    elif trained_on & roots.keys():
        check_roots(variants[0].config, roots)
    if of_paper and "chairs" in roots:
        others.setdefault("chairs:val", roots["chairs"])
    sets = {name: list_pairs(name, root, needs_truth=True) for name, root in others.items()}

    from ..estimation.compute import choose_device  # torch: after all that may be missing
    from ..lab.ablation_report import finished_variants, report_study, small_files
    from ..pictures.figures import draw_figure
    from ..training import join, leave

    place = choose_device(device)
    draw_figure(1, 1)  # complain now if there is no matplotlib
    check_outputs(folders=[output])
    processes = join(place)
    try:
        if trained_on & roots.keys() and of_paper:
            _train_stages(variants, roots, output, processes, quiet=quiet)
        elif trained_on & roots.keys():
            _train(variants, roots, output, scenes, processes, quiet=quiet)
    finally:
        leave(processes)
    if not processes.is_first:
        return
    finished = finished_variants(variants, output)
    for name, listed in sets.items():
        _evaluate(finished, name, listed, output, device, quiet)
    report = report_study(study, finished_variants(variants, output), output)
    if study == "figures":
        report.contents.update(small_files(finished, output))
    _write_report(report, quiet=quiet, as_json=as_json)


def _is_paper(
    protocol: str, rendered_only: Mapping[str, object], paper_only: Mapping[str, object]
) -> bool:
    """Refuse unknown protocols, and options of the other one."""
    from ..errors import InputError, unknown_name

    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    of_paper = protocol == "paper"
    refused = rendered_only if of_paper else paper_only
    given = ", ".join(f"--{name}" for name, value in refused.items() if value is not None)
    if given and of_paper:
        raise InputError(f"--protocol paper has its own recipes; leave out {given}")
    if given:
        raise InputError(f"{given} is for the stages of the paper: --protocol paper")
    return of_paper


def _trained_on(variants: "Iterable[Variant]") -> set[str]:
    """Return the data sets of training, as `--data` may name them: with and without a split."""
    names = {entry.name for v in variants for stage in v.stages for entry in stage.data}
    return names | {name.partition(":")[0] for name in names}


def _print_plans(
    study: str,
    variants: "Iterable[Variant]",
    roots: dict[str, Path],
    output: Path,
    device: str,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Print the stages of each variant, and what all of them cost."""
    from ..estimation.compute import choose_device
    from ..lab.ablation import VariantFolder
    from ..training import join, leave
    from ..training.chain_run import describe_chain, total_cost

    processes = join(choose_device(device))
    silent = quiet or not processes.is_first
    tell = (lambda line: None) if silent else partial(typer.echo, err=True)
    plans: list[dict[str, Any]] = []
    measured: dict[TrainConfig, Pace] = {}  # of stages, whatever the seed
    try:
        for variant in variants:
            stages = VariantFolder(output, variant).stages()
            plan = describe_chain(stages, roots, processes, tell, measured)
            plans.append({"variant": variant.name, "seed": variant.config.seed, **plan})
            if not (silent or as_json):
                typer.echo(f"{variant.name}, seed {variant.config.seed}: {variant.folder}")
                print_plan(plan)
    finally:
        leave(processes)
    total = total_cost(plans, processes)
    if as_json and processes.is_first:
        document = {"study": study, "variants": plans, **total, "written": []}
        options.report(document, quiet=quiet, as_json=True)
    elif not silent:
        print_plan({"stages": [], **total}, "all variants")


def _check_needs(variants: "Iterable[Variant]", roots: dict[str, Path], output: Path) -> None:
    """Refuse to train if data of a stage that is not finished is missing."""
    from ..training.chain import check_needs, open_stages

    stages = [stage for v in variants for stage in open_stages(v.stages, output / v.folder)]
    check_needs(stages, roots)


def _train_stages(
    variants: "Sequence[Variant]",
    roots: dict[str, Path],
    output: Path,
    processes: "Processes",
    *,
    quiet: bool,
) -> None:
    """Train the variants that are not finished in the stages of the paper."""
    from ..lab.ablation import VariantFolder, conclude_stages
    from ..training.chain_run import train_chain

    silent = quiet or not processes.is_first
    tell = (lambda line: None) if silent else partial(typer.echo, err=True)
    missing = [v for v in variants if VariantFolder(output, v).read() is None]
    processes.any(False)  # all have the same list: none has written a result yet
    for variant in missing:
        tell(f"{variant.name}, seed {variant.config.seed}: {variant.folder}")
        stages = [s for s in VariantFolder(output, variant).stages() if not s.finished]
        signal = train_chain(stages, roots, processes, tell, quiet=silent)
        if signal is not None:
            tell(_STOPPED)
            raise typer.Exit(128 + signal)
        if processes.is_first:
            conclude_stages(variant, output, processes.device)


def _train(
    variants: "Sequence[Variant]",
    roots: dict[str, Path],
    output: Path,
    scenes: int | None,
    processes: "Processes",
    *,
    quiet: bool,
) -> None:
    """Train the variants that are not finished, each in one stage."""
    from ..errors import InputError
    from ..lab.ablation import VariantFolder, open_laboratory

    if processes.world_size > 1:
        raise InputError("torchrun is for --protocol paper; the other one trains in one process")
    missing = [v for v in variants if VariantFolder(output, v).read() is None]
    if not missing:
        return
    output.mkdir(parents=True, exist_ok=True)
    how = (output, missing[0].config, roots, scenes or 64, processes.device)
    laboratory = open_laboratory(*how, quiet=quiet)
    for variant in missing:
        if not quiet:
            typer.echo(f"{variant.name}, seed {variant.config.seed}: {variant.folder}", err=True)
        outcome = laboratory.train(variant)
        if not outcome.finished:
            typer.echo(_STOPPED, err=True)
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
