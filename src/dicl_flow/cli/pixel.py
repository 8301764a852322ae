"""The command `analyze pixel`."""

from typing import Annotated

import typer

from . import analyze, options
from .findings import check_findings, write_findings
from .outputs import files_of


def pixel(
    x: Annotated[int, typer.Argument(help="Column of frame 1, from 0.")],
    y: Annotated[int, typer.Argument(help="Row of frame 1, from 0.")],
    output: analyze.Output,
    weights: analyze.ManyWeights = None,
    pair: analyze.Pair = None,
    truth: analyze.Truth = None,
    data: options.Data = None,
    number: Annotated[int, typer.Option(min=1, help="Which pair of the data.")] = 1,
    max_size: options.MaxSize = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Draw the probabilities of one pixel at each level; yellow lines cross at the truth.

    Printed for each level: the most probable displacement and its probability, the next best
    probability, and the displacement that would be correct given the coarser levels, in cells of
    that level (at stride 8, a cell is 8 pixels of the frame).

    PWC-Net and VCN with a learned matcher: the probabilities are a softmax of its scores, which
    these networks do not compute themselves.

    Examples:

      dicl-flow analyze pixel 300 200 --pair one.png two.png --truth flow.flo -o pixel

      dicl-flow analyze pixel 300 200 -w dot.safetensors -w dicl.safetensors -o pixel
    """
    from ..errors import InputError

    pairs = analyze.find_pairs(pair, truth, data, None)
    analyze.find_weights(weights)
    if number > len(pairs):
        raise InputError(f"--number {number}: there are {len(pairs)} pairs")

    from ..lab.analyses import draw_pixel, read_pixel
    from ..lab.volumes import open_networks

    chosen = pairs[number - 1]
    check_findings(output, "pixel", [*files_of([chosen]), *(weights or [])])
    found = read_pixel(open_networks(weights or [None], device, precision), chosen, x, y)
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
