"""`dicl-flow bench`: the speed of this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .outputs import check_outputs

if TYPE_CHECKING:
    import torch

    from ..lab.speed import Case, Result

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
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Time OpenCV's DIS as well, and torchvision's RAFT where it is installed.",
        ),
    ] = False,
    first: Annotated[
        bool,
        typer.Option(
            "--first",
            help="Time `dicl-flow flow` in fresh processes instead, part by part; on CUDA with an "
            "empty and with a full cache of kernels.",
        ),
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Timed calls; the median counts. Default: 20, with --first 5."),
    ] = None,
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

      dicl-flow bench --first --size 1024x436
    """
    from ..config import find_quality
    from ..errors import InputError
    from ..weights import resolve

    if host is not None and weights is not None:
        raise InputError("--host times a network without weights; give --host or --weights")
    if first and any((host, paths, batches, plot, compiled, peers)):
        raise InputError("--first takes --size, --weights, --quality, --device and --repeats only")
    effort = find_quality(quality)
    check_outputs([output, plot], inputs=[weights])
    sizes = sizes or (["512x256"] if quick else _SIZES[:1] if first else _SIZES)
    shapes = [_parse_size(size) for size in sizes]
    batches = batches or ([1] if quick else [1, 8])
    repeats = 3 if quick else repeats or (5 if first else 20)
    resolve(weights)  # a missing file is named before torch is imported

    from ..estimation.compute import choose_device
    from ..lab.speed import (
        LEGEND,
        PEERS_LEGEND,
        Case,
        as_record,
        choose_ways,
        encode_plot,
        find_peers,
        measure,
        open_network,
        random_network,
    )

    place, shown = choose_device(device), not (quiet or as_json)
    if first:
        words = ["--quality", quality, *(["--weights", weights] if weights else [])]
        pairs = [Case(*shape) for shape in shapes]
        rows = _time_first(pairs, place, words, repeats, shown=shown)
        _finish({"quality": quality, "first": rows}, place, output, {}, as_json=as_json)
        return
    cases = [Case(*shape, batches[0]) for shape in shapes]
    cases += [Case(*shapes[0], batch) for batch in batches[1:]]
    model, calibration = (
        open_network(weights, effort) if host is None else (random_network(host), None)
    )
    default = ["plain-fp32", "fast-fp32", "fast-auto"] if host is None else ["plain-fp32"]
    more = ["compiled-fp32", "compiled-auto"] if compiled else []
    ways = choose_ways([*(paths or default), *more], model.config, place)
    methods = find_peers(place, {precision: None for _, precision in ways}) if peers else []
    results, left_out = [], list[str]()
    how = (ways, repeats, calibration, effort, methods, left_out.append)
    for result in measure(model, place, cases, *how):
        results.append(result)
        if shown:
            _print_row(result, first=len(results) == 1)
    if shown:
        notes = [f"left out: {reason}" for reason in left_out]
        names = dict.fromkeys(method.name for method in methods)  # one method, several precisions
        legend = [LEGEND, *(f"{name}: {PEERS_LEGEND[name]}" for name in names)]
        typer.echo("\n".join(["", *notes, *legend]))
    found = {"host": model.config.host, "quality": quality, "results": [*map(as_record, results)]}
    found |= {"left_out": left_out} if left_out else {}
    pictures = {} if plot is None else {plot: encode_plot(results)}
    _finish(found, place, output, pictures, as_json=as_json)


def _finish(
    found: dict[str, Any],
    place: "torch.device",
    output: Path | None,
    pictures: dict[Path, bytes],
    *,
    as_json: bool,
) -> None:
    """Add how it was measured; write the files."""
    import json
    import shlex
    import sys
    from datetime import date

    from .._version import __version__
    from ..files import write_files
    from ..lab.timing import describe_machine

    report = {
        "command": shlex.join(["dicl-flow", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "dicl_flow": __version__,
        **describe_machine(place),
        **found,
    }
    text = {} if output is None else {output: json.dumps(report, indent=1).encode()}
    written = text | pictures
    write_files(written)
    if as_json:
        typer.echo(json.dumps({**report, "written": [*map(str, written)]}))


def _time_first(
    cases: "Sequence[Case]",
    place: "torch.device",
    words: Sequence[str],
    repeats: int,
    *,
    shown: bool,
) -> list[dict[str, Any]]:
    """Print the seconds of the first result of each case; return them as records."""
    import sys

    from ..lab.speed import FIRST_COLUMNS as COLUMNS
    from ..lab.speed import FIRST_LEGEND as LEGEND
    from ..lab.speed import measure_first

    command = [sys.executable, "-m", "dicl_flow", "flow", "--json", "--device", str(place), *words]
    records = []
    if shown:
        heads = ("size", "cache", *(column.replace("_", " ") for column in COLUMNS))
        typer.echo("  ".join(f"{head:>8}" for head in heads))
    for case in cases:
        for cache, seconds in measure_first(case, place, command, repeats):
            records.append({"width": case.width, "height": case.height, "cache": cache, **seconds})
            cells = (f"{case.width}x{case.height}", cache, *(f"{s:.2f}" for s in seconds.values()))
            if shown:
                typer.echo("  ".join(f"{cell:>8}" for cell in cells))
    if shown:
        typer.echo(f"\n{LEGEND}")
    return records


def _parse_size(text: str) -> tuple[int, int]:
    size = options.parse_size("--size", text)
    return size.width, size.height


def _print_row(result: "Result", *, first: bool) -> None:
    from ..lab.speed import HEADINGS, as_rows

    widths = (9, 5, 13, 7, 7, 5, 11, 7, 7, 7)
    for cells in [HEADINGS, *as_rows([result])] if first else as_rows([result]):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
