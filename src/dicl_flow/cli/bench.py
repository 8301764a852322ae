"""`dicl-flow bench`: the speed of this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .outputs import check_outputs

if TYPE_CHECKING:
    from ..lab.speed_cases import Result

_SIZES = ["1024x436", "1242x375", "1920x1080", "3840x2160"]


def bench(
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", help=f"WIDTHxHEIGHT; repeatable. Default: {', '.join(_SIZES)}."),
    ] = None,
    batches: Annotated[
        list[int] | None, typer.Option("--batch", min=1, help="Pairs at a time; default: 1 and 8.")
    ] = None,
    paths: Annotated[
        list[str] | None,
        typer.Option(
            "--path",
            help="BACKEND-PRECISION; default: plain-fp32, fast-fp32, fast-auto; with --host "
            "plain-fp32. Backends: plain, fast, compiled (torch.compile).",
        ),
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Measure compiled-fp32 and compiled-auto as well: the plain network through "
            "torch.compile, which takes minutes for each size.",
        ),
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls; the median counts.")] = 20,
    quick: Annotated[
        bool, typer.Option("--quick", help="One small size, batch 1, three timed calls.")
    ] = False,
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    host: Annotated[
        str | None, typer.Option(help="Time this network with random weights: pwcnet, vcn or dicl.")
    ] = None,
    device: options.Device = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file to write.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw time and memory by size.")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Time the plain and the accelerated network on this machine.

    Frames are computed at the size given, even where the weights would have them scaled down.
    Batches of several pairs are measured at the first size only.

    Examples:

      dicl-flow bench --quick

      dicl-flow bench --device cuda -o h200.json --plot h200.png

      dicl-flow bench --host vcn --size 1024x436 --batch 1
    """
    import json
    import shlex
    import sys
    from datetime import date

    from .._version import __version__
    from ..config import find_quality
    from ..errors import InputError
    from ..files import write_files
    from ..weights import resolve

    if host is not None and weights is not None:
        raise InputError("--host times a network without weights; give --host or --weights")
    effort = find_quality(quality)
    wanted = check_outputs([output, plot], inputs=[weights])
    sizes, batches = (
        sizes or (["512x256"] if quick else _SIZES),
        batches or ([1] if quick else [1, 8]),
    )
    shapes = [_parse_size(size) for size in sizes]
    resolve(weights)  # a missing file is named before torch is imported

    from ..estimation.compute import choose_device
    from ..lab.speed_cases import Case, measure
    from ..lab.speed_plot import encode_plot
    from ..lab.speed_setup import choose_ways, describe_machine, open_network, random_network
    from ..lab.speed_table import LEGEND, as_record

    cases = [Case(*shape, batches[0]) for shape in shapes]
    cases += [Case(*shapes[0], batch) for batch in batches[1:]]
    place = choose_device(device)
    model, calibration = (
        open_network(weights, effort) if host is None else (random_network(host), None)
    )
    default = ["plain-fp32", "fast-fp32", "fast-auto"] if host is None else ["plain-fp32"]
    more = ["compiled-fp32", "compiled-auto"] if compiled else []
    ways = choose_ways([*(paths or default), *more], model.config, place)
    results = []
    repeats = 3 if quick else repeats
    for result in measure(model, place, cases, ways, repeats, calibration, effort):
        results.append(result)
        if not (quiet or as_json):
            _print_row(result, first=len(results) == 1)
    report = {
        "command": shlex.join(["dicl-flow", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "dicl_flow": __version__,
        **describe_machine(place),
        "host": model.config.host,
        "quality": quality,
        "results": [as_record(result) for result in results],
    }
    encoders = {
        output: lambda: json.dumps(report, indent=1).encode(),
        plot: lambda: encode_plot(results),
    }
    write_files({path: encoders[path]() for path in wanted})
    if as_json:
        typer.echo(json.dumps({**report, "written": [*map(str, wanted)]}))
    elif not quiet:
        typer.echo(f"\n{LEGEND}")


def _parse_size(text: str) -> tuple[int, int]:
    size = options.parse_size("--size", text)
    return size.width, size.height


def _print_row(result: "Result", *, first: bool) -> None:
    from ..lab.speed_table import HEADINGS, as_rows

    widths = (9, 5, 13, 7, 7, 5, 11, 7, 7, 7)
    for cells in [HEADINGS, *as_rows([result])] if first else as_rows([result]):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
