"""The command `analyze levels`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import analyze, options
from .findings import check_findings, write_findings
from .input_files import find_photos
from .outputs import files_of

if TYPE_CHECKING:
    from ..data import FlowSample


def levels(
    output: analyze.Output,
    weights: analyze.ManyWeights = None,
    pair: analyze.Pair = None,
    truth: analyze.Truth = None,
    data: options.Data = None,
    limit: analyze.Limit = None,
    rendered: Annotated[
        str | None,
        typer.Option(
            metavar="PHOTOS", help="Rendered scenes instead: photographs, or 'procedural'."
        ),
    ] = None,
    scenes: Annotated[int, typer.Option("--scenes", "-n", min=1, help="How many scenes.")] = 16,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of a scene.")] = "1024x640",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same scenes.")] = 1000,
    max_size: options.MaxSize = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Show what each level contributes: the error of its matched and refined flow, by motion.

    A level that does not lower the error of the one before it adds nothing; one that gives all
    its probability to "no displacement" has not learned to match.

    Examples:

      dicl-flow analyze levels --rendered PHOTOS -o levels

      dicl-flow analyze levels --data sintel-clean=Sintel -w old.safetensors -w rendered -o levels
    """
    from rich.console import Console

    from ..errors import InputError
    from ..evaluation import print_grid

    pairs = [] if rendered else [p for p in analyze.find_pairs(pair, truth, data, limit) if p.truth]
    if rendered and (pair or data):
        raise InputError("--rendered excludes --pair and --data")
    if not rendered and not pairs:
        raise InputError("none of these pairs has a truth to measure errors against")
    analyze.find_weights(weights)
    check_findings(output, "levels", [*files_of(pairs), *(weights or [])])
    frame, photos = options.parse_size("--size", size), find_photos(rendered) if rendered else None

    from ..data import read_sample
    from ..estimation.compute import choose_device
    from ..lab.analyses import draw_levels, find_level_errors, level_grid
    from ..lab.volumes import open_networks
    from ..pictures.figures import draw_figure
    from ..render import held_out_renderer

    draw_figure(1, 1)  # complain now if there is no matplotlib
    what: dict[str, Any] = {"pairs": [p.name for p in pairs]}
    samples: Iterable[FlowSample] = map(read_sample, options.track(pairs, "pairs", quiet=quiet))
    if rendered:
        what = {"photographs": rendered, "scenes": scenes, "size": size, "seed": seed}
        renderer = held_out_renderer(photos, frame, choose_device(device), seed=seed)
        numbers = options.track(range(scenes), "scenes", quiet=quiet)
        samples = (renderer.render(1, number).to_samples()[0] for number in numbers)
    found = find_level_errors(open_networks(weights or [None], device, precision), samples)
    summary = {name: errors.summary() for name, errors in found.items()}
    document = {**what, "found": summary}
    written = write_findings(output, "levels", document, draw_levels(found))
    if as_json:
        options.report({**document, "written": written}, quiet=quiet, as_json=True)
    elif not quiet:
        for name, errors in found.items():
            print_grid(level_grid(name, errors), Console())
