from pathlib import Path
from typing import Annotated

import typer

from . import options
from .outputs import check_outputs


def warp(
    image2: Annotated[Path, typer.Argument(help="Second frame.")],
    flow: Annotated[Path, typer.Argument(help="Flow from frame 1 to frame 2.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture to write.")],
    mask: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Black where the flow leaves or is unknown.")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Pull the second frame back along the flow: it comes to look like the first.

    Black where the flow leads out of the frame or is unknown. What frame 2 hides shows up
    double: no flow can bring it back. 16 bits are kept in .png and .tif.

    Example:

      dicl-flow warp frame2.png flow.flo -o frame1_again.png --mask inside.png
    """
    import numpy as np

    from ..files import encode_image, read_flow, read_image, to_integers, write_files
    from ..warping import warp

    check_outputs(pictures=[output, mask], inputs=[image2, flow])
    image, vectors = to_integers(read_image(image2)), read_flow(flow)
    warped = warp(image, vectors)
    inside = warp(np.ones(vectors.shape[:2]), vectors) > 0
    contents = {output: encode_image(output, warped)}
    if mask is not None:
        contents[mask] = encode_image(mask, np.where(inside, 255, 0).astype(np.uint8))
    write_files(contents)
    height, width = inside.shape
    summary = {
        "written": ", ".join(map(str, contents)),
        "size": f"{width}x{height}",
        "inside": float(inside.mean()),
    }
    options.report(summary, quiet=quiet, as_json=as_json)
