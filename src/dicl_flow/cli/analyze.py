from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import Group
from .findings import check_findings, report, write_findings
from .outputs import files_of

if TYPE_CHECKING:
    from ..data import FlowPair

analyze_app = typer.Typer(
    cls=Group, help="Look into the method, as the paper does.", no_args_is_help=True
)

Output = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to.")]
ManyWeights = Annotated[
    list[str] | None,
    typer.Option("--weights", "-w", metavar="NAME|PATH", help="Weights; repeat to compare."),
]
Pair = Annotated[
    tuple[Path, Path] | None, typer.Option(metavar="IMAGE1 IMAGE2", help="The frames to look at.")
]
Truth = Annotated[Path | None, typer.Option(help="Flow file with the truth of --pair.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many pairs of each data set.")]


@analyze_app.command("peaks")
def peaks(
    output: Output,
    weights: ManyWeights = None,
    pair: Pair = None,
    truth: Truth = None,
    data: options.Data = None,
    limit: Limit = None,
    max_size: options.MaxSize = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """How clear the best match is: the distribution of d_peak, before and after DAP.

    d_peak is the highest minus the second highest of a pixel's 49 probabilities at the finest
    level. With truth also: the error of the flow before the context net, read off as the most
    probable displacement (winner takes all) or as the expected one (soft-argmin).

    Examples:

      dicl-flow analyze peaks --data sintel-clean=Sintel -o peaks

      dicl-flow analyze peaks -w with.safetensors -w without.safetensors -o peaks
    """
    pairs = find_pairs(pair, truth, data, limit)
    find_weights(weights)

    from ..evaluation.published import PUBLISHED_PEAKS
    from ..lab.peaks import draw_peaks, find_peaks
    from ..lab.volumes import open_networks
    from ..pictures.figures import draw_figure

    draw_figure(1, 1)  # complain now if there is no matplotlib
    check_findings(output, "peaks", [*files_of(pairs), *(weights or [])])
    estimators = open_networks(weights or [None], device)
    found = find_peaks(estimators, options.track(pairs, "pairs", quiet=quiet))
    summary = {name: peak.summary() for name, peak in found.items()}
    document = {"pairs": [p.name for p in pairs], "found": summary, "paper": PUBLISHED_PEAKS}
    arrays = {f"histogram: {name}": peak.histogram for name, peak in found.items()}
    written = write_findings(output, "peaks", document, draw_peaks(found), arrays)
    report(summary, written, quiet=quiet, as_json=as_json)


@analyze_app.command("kernels")
def kernels(
    output: Output,
    weights: options.Weights = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Draw the kernels of the DAP layers, and how displacements help or suppress each other.

    Printed for each level: the mean weight of a kernel's own displacement, of its neighbours
    (near) and of those more than 3 away (far), the share of near weights that are positive and
    the share of far ones that are negative.

    Examples:

      dicl-flow analyze kernels -o kernels
    """
    find_weights([weights] if weights else None)

    from ..lab.projection_kernels import (
        draw_kernels,
        projection_kernels,
        summarize_kernel,
        weight_by_distance,
    )
    from ..lab.volumes import open_networks

    check_findings(output, "kernels", [weights])
    ((name, estimator),) = open_networks([weights], device).items()
    found = projection_kernels(name, estimator)
    summary = {f"stride {stride}": summarize_kernel(k) for stride, k in found.items()}
    curves = {f"stride {stride}": weight_by_distance(k) for stride, k in found.items()}
    document = {"weights": name, "levels": summary, "mean_weight_by_distance": curves}
    arrays = {f"stride {stride}": kernel for stride, kernel in found.items()}
    written = write_findings(output, "kernels", document, draw_kernels(name, found), arrays)
    report(summary, written, quiet=quiet, as_json=as_json)


@analyze_app.command("pixel")
def pixel(
    x: Annotated[int, typer.Argument(help="Column of frame 1, from 0.")],
    y: Annotated[int, typer.Argument(help="Row of frame 1, from 0.")],
    output: Output,
    weights: ManyWeights = None,
    pair: Pair = None,
    truth: Truth = None,
    data: options.Data = None,
    number: Annotated[int, typer.Option(min=1, help="Which pair of the data.")] = 1,
    max_size: options.MaxSize = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Draw the probabilities of one pixel at each level; yellow lines cross at the truth.

    Printed for each level: the most probable displacement and its probability, the next best
    probability, and the displacement that would be right, beyond what the coarser levels have
    found, in pixels of that level (at stride 8 one is 8 pixels of the frame).

    Examples:

      dicl-flow analyze pixel 300 200 --pair one.png two.png --truth flow.flo -o pixel

      dicl-flow analyze pixel 300 200 -w dot.safetensors -w dicl.safetensors -o pixel
    """
    from ..errors import InputError

    pairs = find_pairs(pair, truth, data, None)
    find_weights(weights)
    if number > len(pairs):
        raise InputError(f"--number {number}: there are {len(pairs)} pairs")

    from ..lab.pixel import draw_pixel, read_pixel
    from ..lab.volumes import open_networks

    chosen = pairs[number - 1]
    check_findings(output, "pixel", [*files_of([chosen]), *(weights or [])])
    found = read_pixel(open_networks(weights or [None], device), chosen, x, y)
    summary = {
        name: {f"stride {m.stride}": m.summary() for m in maps} for name, maps in found.items()
    }
    arrays = {
        f"{name}, stride {m.stride}": m.probability for name, maps in found.items() for m in maps
    }
    document = {"pair": chosen.name, "pixel": [x, y], "found": summary}
    written = write_findings(output, "pixel", document, draw_pixel(found, chosen, x, y), arrays)
    lines = {f"{name}, stride {m.stride}": str(m) for name, maps in found.items() for m in maps}
    told = document if as_json else lines
    options.report({**told, "written": written}, quiet=quiet, as_json=as_json)


@analyze_app.command("layers")
def layers(
    output: Output,
    channels: Annotated[
        int, typer.Option(min=2, help="K, the channels of both frames; even.")
    ] = 32,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of the features.")] = "96x64",
    radius: Annotated[int, typer.Option(min=1, help="The largest displacement, in px.")] = 3,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """What a layer costs: a 4-D convolution, VCN's separable one, and the matching net's.

    The formulas of the paper's table 1, those of equal layers, and memory and time measured.

    Examples:

      dicl-flow analyze layers --channels 64 --device cuda -o layers
    """
    from dataclasses import asdict

    from rich.console import Console

    from ..errors import InputError
    from ..estimation.compute import choose_device
    from ..evaluation import grid_markdown, print_grid
    from ..lab.layer_costs import WHY, draw_layers, layer_grids, measure_layers
    from ..lab.layer_runs import Volume

    if channels % 2:
        raise InputError(f"--channels are those of two frames, an even number; got {channels}")
    check_findings(output, "layers", [])
    volume = Volume(channels, 2 * radius + 1, *options.parse_size("--size", size))
    costs = measure_layers(volume, choose_device(device))
    grids = layer_grids(volume, costs)
    document = {"volume": asdict(volume), "layers": [asdict(cost) for cost in costs], "why": WHY}
    table = "\n\n".join(map(grid_markdown, grids)) + "\n"
    figure = draw_layers(volume, costs)
    written = write_findings(output, "layers", document, figure, table=table)
    if as_json:
        options.report({**document, "written": written}, quiet=quiet, as_json=True)
    elif not quiet:
        for grid in grids:
            print_grid(grid, Console())


def find_pairs(
    pair: tuple[Path, Path] | None, truth: Path | None, data: list[str] | None, limit: int | None
) -> "list[FlowPair]":
    """--pair, or --data, or the packaged pairs, those with truth first."""
    from dataclasses import replace

    from ..data import FlowPair, list_pairs, parse_data_argument
    from ..errors import InputError
    from ..files import check_file
    from .demo import demo_pairs

    if truth is not None and pair is None:
        raise InputError("--truth is the flow of --pair IMAGE1 IMAGE2; give that as well")
    if pair is not None and data:
        raise InputError("--pair and --data exclude each other")
    if pair is not None:
        for file in filter(None, (*pair, truth)):
            check_file(file)
        return [FlowPair(pair[0].stem, *pair, truth)]
    if not data:
        return sorted(demo_pairs(), key=lambda p: p.truth is None)
    sets = {name: list_pairs(name, root) for name, root in map(parse_data_argument, data)}
    return [
        replace(item, name=f"{name}/{item.name}")
        for name, pairs in sets.items()
        for item in pairs[:limit]
    ]


def find_weights(weights: list[str] | None) -> None:
    """Refuse weights that are not there before torch is imported, which takes seconds."""
    from ..weights import resolve

    names: list[str | None] = [*weights] if weights else [None]
    for name in names:
        resolve(name)
