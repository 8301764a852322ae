"""The command `eval`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .computing import estimates
from .outputs import check_outputs, files_of, refuse_inputs

if TYPE_CHECKING:
    from ..data import FlowPair
    from ..evaluation import Evaluation


@estimates
def evaluate(
    data: Annotated[
        list[str], typer.Option("--data", "-d", metavar="NAME=PATH", help="Data set; repeatable.")
    ],
    weights: options.Weights = None,
    baseline: Annotated[
        str | None, typer.Option(help="Also score this method; alone without --weights: dis.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="JSON", help="Write all numbers to a file."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    worst: Annotated[
        tuple[int, Path] | None,
        typer.Option(metavar="N DIR", help="Draw the N worst pairs of each method and data set."),
    ] = None,
    sparsification: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw how well the confidence finds errors.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep predictions: METHOD/DATA/PAIR.flo.")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Score what --keep has written.")
    ] = None,
    valid_only: Annotated[
        bool,
        typer.Option("--valid-only", help="Leave out what Sintel marks as invalid, unlike papers."),
    ] = False,
    full_size: options.FullSize = False,
    quality: options.Quality = "normal",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Score a network on data sets, and compare it with the published numbers.

    EPE and EPE images, 1/3/5 px, Fl-all, WAUC, EPE by speed and by visibility, AUSE of the
    confidence. Pairs without truth are judged by warping, which is not an end-point error.

    Examples:

      dicl-flow eval --data sintel-clean=Sintel --data kitti15=KITTI --weights my.safetensors

      dicl-flow eval --data kitti15=KITTI --baseline dis --worst 10 pictures -o scores.json

      dicl-flow eval --data kitti15=KITTI --quality best
    """
    from ..evaluation import draw_sparsification, evaluate_predictions
    from ..evaluation import evaluate as estimate_and_score
    from ..files import write_files

    pictures = None if worst is None else worst[1]
    _check(weights, baseline, keep, predictions, worst)
    wanted = check_outputs(
        [output, markdown, sparsification],
        folders=[keep, pictures],
        inputs=[predictions, weights],
    )
    if sparsification is not None:
        _check_plot(sparsification, baseline is not None and weights is None)
    sets = _list_data(data)
    refuse_inputs(wanted, (file for pairs in sets.values() for file in files_of(pairs)))
    progress = partial(options.track, quiet=quiet)
    if predictions:
        found = evaluate_predictions(
            sets, predictions, worst=worst, valid_only=valid_only, progress=progress
        )
    else:
        networks = [weights] if weights or not baseline else []
        found = estimate_and_score(
            sets,
            [*networks, *([baseline] if baseline else [])],
            keep=keep,
            worst=worst,
            valid_only=valid_only,
            progress=progress,
            quality=quality,
            full_size=full_size,
            **how,
        )
    texts = {output: found.to_json(), markdown: found.to_markdown()}
    contents = {path: text.encode() for path, text in texts.items() if path is not None}
    if sparsification is not None:
        contents[sparsification] = draw_sparsification(found.results)
    write_files(contents)
    written = [*contents, *(path for path in (keep, pictures) if path is not None)]
    _print(found, written, quiet=quiet, as_json=as_json)


def _print(found: "Evaluation", written: list[Path], *, quiet: bool, as_json: bool) -> None:
    from rich.console import Console

    from ..evaluation import print_results

    if as_json:
        options.report({**found.document(), "written": written}, quiet=quiet, as_json=True)
    elif not quiet:
        print_results(found.results, Console())
        for size, how in found.computed.items():
            in_words = options.parse_size("size", size).in_words
            typer.echo(f"frames {in_words} are computed {how}")


def _check(
    weights: str | None,
    baseline: str | None,
    keep: Path | None,
    predictions: Path | None,
    worst: tuple[int, Path] | None,
) -> None:
    from ..errors import InputError, unknown_name
    from ..evaluation import BASELINES

    if baseline is not None and baseline not in BASELINES:
        raise unknown_name("baseline", baseline, BASELINES)
    if predictions is not None and (weights or baseline or keep):
        raise InputError("--predictions estimates nothing; leave out --weights, --baseline, --keep")
    if worst is not None and worst[0] < 1:
        raise InputError(f"--worst takes a number of pairs from 1 up and a folder, got {worst[0]}")


def _check_plot(path: Path, baseline_alone: bool) -> None:
    from ..errors import InputError
    from ..pictures.figures import draw_figure

    draw_figure(1, 1)  # complain now if there is no matplotlib
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: the curves are drawn as .png")
    if baseline_alone:
        raise InputError("--sparsification needs a confidence, and a baseline has none; add -w")


def _list_data(arguments: list[str]) -> "dict[str, list[FlowPair]]":
    from ..data import list_pairs, parse_data_argument
    from ..errors import InputError

    sets: dict[str, list[FlowPair]] = {}
    for name, root in map(parse_data_argument, arguments):
        if name in sets:
            raise InputError(f"--data names {name} twice; evaluate one after the other")
        sets[name] = list_pairs(name, root)
    return sets
