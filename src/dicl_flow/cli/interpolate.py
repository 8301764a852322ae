"""The command `interpolate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .computing import estimates
from .input_files import files_among, read_frames
from .outputs import check_outputs, quote_pattern
from .slow_motion import Network, slow_motion


@estimates
def interpolate(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT", help="Two frames of one size (one may be -), or one clip."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Picture to write; with -n, NAME_1 … NAME_N. Of a clip: video "
            "(.mp4 .mov .mkv .webm .gif) or folder.",
        ),
    ],
    time: Annotated[
        float | None, typer.Option(help="Between 0 (frame 1) and 1 (frame 2); default 0.5.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="This many frames, evenly spaced.")
    ] = None,
    factor: Annotated[
        int | None, typer.Option(min=2, max=64, help="Of a clip: how many times slower.")
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(min=0.01, max=480, help="Of a clip: rate to write; default: its own."),
    ] = None,
    encoder: options.Encoder = None,
    start: Annotated[str | None, typer.Option(help="Of a clip: first frame, 120 or 3.5s.")] = None,
    end: Annotated[str | None, typer.Option(help="Of a clip: frame to stop before.")] = None,
    on_error: Annotated[
        str | None, typer.Option(help="At a broken frame of a clip: stop (default), or skip it.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a clip from scratch instead of resuming it.")
    ] = False,
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Make the frames between two frames, or slow motion of a whole clip.

    The flow in both directions shows where things are in between. A clip is a video, a folder or
    a 'glob' of frames. Across a cut nothing is blended: the frame before it is held. 16-bit
    images stay 16-bit. The same command resumes a clip that was stopped.

    Examples:

      dicl-flow interpolate frame1.png frame2.png -o middle.png

      dicl-flow interpolate frame1.png frame2.png -o slow.png -n 3

      dicl-flow interpolate clip.mp4 -o slow.mp4 --factor 4
    """
    from ..errors import InputError

    if len(inputs) > 2:
        raise quote_pattern(inputs, "two frames or one clip are taken")
    network = Network(weights, quality, how)
    if len(inputs) == 1:
        if factor is None or time is not None or count is not None:
            raise InputError(
                "one input is a clip, which takes --factor N (N times slower), not --time or -n; "
                "give a second frame for the frames between two"
            )
        part = (start, end, on_error or "stop")
        summary = slow_motion(
            *(inputs[0], output, factor, fps, encoder, part, network),
            restart=restart,
            quiet=quiet,
        )
    else:
        of_clips = {"factor": factor, "fps": fps, "encoder": encoder, "start": start, "end": end}
        of_clips |= {"on-error": on_error, "restart": restart or None}
        for name, given in of_clips.items():
            if given is not None:
                raise InputError(
                    f"--{name} is for a clip, and these are two frames; give a folder or a quoted "
                    "pattern, as 'frames/*.png'"
                )
        summary = _between(inputs, output, time, count, network)
    options.report(summary, quiet=quiet, as_json=as_json)


def _between(
    inputs: list[str],
    output: Path,
    time: float | None,
    count: int | None,
    network: Network,
) -> dict[str, Any]:
    """Write the frames between two; return the summary."""
    from ..errors import InputError
    from ..files import encode_image, to_integers, write_files
    from ..weights import resolve

    if time is not None and count is not None:
        raise InputError("give --time or -n, not both")
    if time is not None and not 0 <= time <= 1:
        raise InputError(f"--time lies between 0 (frame 1) and 1 (frame 2), got {time:g}")
    times = _times(output, 0.5 if time is None else time, count)
    paths = [*map(Path, inputs)]
    check_outputs(pictures=list(times), inputs=[*files_among(*paths), network.weights])
    frame1, frame2 = map(to_integers, read_frames(*paths))
    frames = frame1, frame2
    resolve(network.weights)  # a missing file is named before torch is imported

    from ..estimation.interpolation import interpolate

    result = network.load()(*frames, backward=True)
    assert result.backward is not None
    flows = result.flow, result.backward.flow
    pictures = {path: interpolate(*frames, *flows, moment) for path, moment in times.items()}
    write_files({path: encode_image(path, picture) for path, picture in pictures.items()})
    return {
        "written": list(times),
        "times": ", ".join(f"{moment:.3g}" for moment in times.values()),
        "size": options.Size(*frames[0].shape[:2]),
    }


def _times(output: Path, time: float, count: int | None) -> dict[Path, float]:
    """Return each file to write, and its time."""
    if count is None:
        return {output: time}
    names = {n: output.with_name(f"{output.stem}_{n}{output.suffix}") for n in range(1, count + 1)}
    return {path: n / (count + 1) for n, path in names.items()}
