"""The command `warp`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .input_files import files_among, read_frames, read_vectors, refuse_two_streams
from .outputs import check_outputs


def warp(
    image2: Annotated[Path, typer.Argument(help="Second frame; - is the standard input.")],
    flow: Annotated[Path, typer.Argument(help="Flow from frame 1 to frame 2, or -.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture to write.")],
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help="Mask to write: black where the flow leaves the frame or is unknown.",
        ),
    ] = None,
    file_format: options.FlowFormat = None,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Warp the second frame along the flow, so that it looks like the first.

    Pixels whose flow leaves the frame or is unknown are black. Where frame 2 hides a part of
    frame 1, what hides it appears twice. 16 bits are kept in .png and .tif.

    Example:

      dicl-flow warp frame2.png flow.flo -o warped.png --mask inside.png
    """
    import numpy as np

    from ..files import encode_image, to_integers, write_files

    refuse_two_streams([image2, flow])
    check_outputs(pictures=[output, mask], inputs=files_among(image2, flow))
    image, vectors = to_integers(read_frames(image2)[0]), read_vectors(flow, file_format)

    # torch, which takes seconds: after the files are read
    from ..estimation.warping import warp

    warped = warp(image, vectors)
    inside = warp(np.ones(vectors.shape[:2]), vectors) > 0
    contents = {output: encode_image(output, warped)}
    if mask is not None:
        contents[mask] = encode_image(mask, np.where(inside, 255, 0).astype(np.uint8))
    write_files(contents)
    height, width = inside.shape
    summary = {
        "written": list(contents),
        "size": options.Size(height, width),
        "inside": float(inside.mean()),
    }
    options.report(summary, quiet=quiet, as_json=as_json)
