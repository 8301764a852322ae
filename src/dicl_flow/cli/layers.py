"""The command `analyze layers`."""

from typing import Annotated

import typer

from . import analyze, options
from .findings import check_findings, write_findings


def layers(
    output: analyze.Output,
    channels: Annotated[
        int, typer.Option(min=2, help="K, the channels of both frames; even.")
    ] = 32,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of the features.")] = "96x64",
    radius: Annotated[int, typer.Option(min=1, help="The largest displacement, in px.")] = 3,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Compare the cost of layers: a 4-D convolution, VCN's separable one, the matching net's.

    The formulas of the paper's table 1, those of layers of equal width, and the memory and time
    that were measured.

    Examples:

      dicl-flow analyze layers --channels 64 --device cuda -o layers
    """
    from dataclasses import asdict

    from rich.console import Console

    from ..errors import InputError
    from ..estimation.compute import choose_device
    from ..evaluation import grid_markdown, print_grid
    from ..lab.layers import WHY, VolumeShape, draw_layers, layer_grids, measure_layers

    if channels % 2:
        raise InputError(f"--channels counts those of two frames, so it is even; got {channels}")
    check_findings(output, "layers", [])
    volume = VolumeShape(channels, 2 * radius + 1, *options.parse_size("--size", size))
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
