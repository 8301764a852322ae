"""The command `show`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .input_files import files_among, read_vectors
from .outputs import check_outputs


def show(
    flow: Annotated[
        Path, typer.Argument(help="Flow: .flo, .png (KITTI), .pfm, .npz, .npy, .exr; or -.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Colour wheel picture to write.")
    ] = None,
    maximum: options.Maximum = None,
    file_format: options.FlowFormat = None,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Print the statistics of a flow file and draw it.

    Example:

      dicl-flow show truth.flo -o truth.png --max 20
    """
    from ..files import encode_image, write_files
    from ..pictures.visualize import flow_statistics, flow_to_rgb

    check_outputs(pictures=[output], inputs=files_among(flow))
    vectors = read_vectors(flow, file_format)
    statistics = flow_statistics(vectors)
    if output is not None:
        write_files({output: encode_image(output, flow_to_rgb(vectors, maximum))})
    height, width = vectors.shape[:2]
    summary = {
        "file": str(flow),
        "size": options.Size(height, width),
        **statistics,
        "written": [] if output is None else [output],
    }
    options.report(summary, quiet=quiet, as_json=as_json)
