from pathlib import Path
from typing import Annotated

import typer

from . import options
from .outputs import check_outputs


def show(
    flow: Annotated[Path, typer.Argument(help="Flow file: .flo, .png (KITTI), .pfm, .npz, .npy.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Colour wheel picture to write.")
    ] = None,
    maximum: options.Maximum = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Print the statistics of a flow file and draw it.

    Example:

      dicl-flow show truth.flo -o truth.png --max 20
    """
    from ..files import encode_image, read_flow, write_files
    from ..visualize import flow_statistics, flow_to_rgb

    check_outputs(pictures=[output], inputs=[flow])
    vectors = read_flow(flow)
    statistics = flow_statistics(vectors)
    if output is not None:
        write_files({output: encode_image(output, flow_to_rgb(vectors, maximum))})
    height, width = vectors.shape[:2]
    summary = {
        "file": str(flow),
        "size": f"{width}x{height}",
        **statistics,
        "written": [] if output is None else [output],
    }
    options.report(summary, quiet=quiet, as_json=as_json)
