from pathlib import Path
from typing import Annotated

import typer

from . import options
from .inputs import files_among, read_frames
from .outputs import check_outputs


def interpolate(
    image1: Annotated[Path, typer.Argument(help="First frame; - is the standard input.")],
    image2: Annotated[Path, typer.Argument(help="Second frame, of the same size, or -.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Picture to write; with -n, NAME_1 … NAME_N.")
    ],
    time: Annotated[
        float | None, typer.Option(help="Between 0 (frame 1) and 1 (frame 2); default 0.5.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="This many frames, evenly spaced.")
    ] = None,
    weights: options.Weights = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    quality: options.Quality = "normal",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Make the frame between two frames, from the flow in both directions.

    Examples:

      dicl-flow interpolate frame1.png frame2.png -o middle.png

      dicl-flow interpolate frame1.png frame2.png -o slow.png -n 3
    """
    from ..errors import InputError
    from ..files import encode_image, to_uint8, write_files
    from ..weights import resolve

    if time is not None and count is not None:
        raise InputError("give --time or -n, not both")
    if time is not None and not 0 <= time <= 1:
        raise InputError(f"--time lies between 0 (frame 1) and 1 (frame 2), got {time:g}")
    times = _times(output, 0.5 if time is None else time, count)
    check_outputs(pictures=list(times), inputs=[*files_among(image1, image2), weights])
    frame1, frame2 = map(to_uint8, read_frames(image1, image2))
    frames = frame1, frame2
    resolve(weights)  # a missing file is named before torch is imported, which takes seconds

    from ..estimator import load
    from ..interpolation import interpolate

    result = load(weights, device, precision, quality=quality)(*frames, backward=True)
    assert result.backward is not None
    flows = result.flow, result.backward.flow
    pictures = {path: interpolate(*frames, *flows, moment) for path, moment in times.items()}
    write_files({path: encode_image(path, picture) for path, picture in pictures.items()})
    summary = {
        "written": list(times),
        "times": ", ".join(f"{moment:.3g}" for moment in times.values()),
        "size": f"{frames[0].shape[1]}x{frames[0].shape[0]}",
    }
    options.report(summary, quiet=quiet, as_json=as_json)


def _times(output: Path, time: float, count: int | None) -> dict[Path, float]:
    """Each file to write and its moment."""
    if count is None:
        return {output: time}
    names = {n: output.with_name(f"{output.stem}_{n}{output.suffix}") for n in range(1, count + 1)}
    return {path: n / (count + 1) for n, path in names.items()}
