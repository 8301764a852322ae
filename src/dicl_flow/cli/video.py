"""The command `video`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .computing import estimates
from .outputs import check_outputs, folders_of, quote_pattern, refuse_inputs


@estimates
def video(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT", help="Video, folder or 'glob' of frames, or camera:0."),
    ],
    output: Annotated[
        list[Path],
        typer.Option(
            "--output", "-o", help="Video (.mp4 .mov .mkv .webm .gif), array (.npy) or folder."
        ),
    ],
    show: Annotated[
        str | None,
        typer.Option(
            help="Pictures of a video: one or several, with commas, of wheel (default), frame, "
            "overlay, arrows, difference, confidence, occlusion."
        ),
    ] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="Files in a folder: flo (default), npz, png …")
    ] = None,
    backward: Annotated[
        bool,
        typer.Option("--backward", help="Write the backward flow too: to a folder or an array."),
    ] = False,
    occlusion: Annotated[
        bool, typer.Option("--occlusion", help="Write masks of hidden pixels, to a folder.")
    ] = False,
    min_confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="Flow with less confidence becomes unknown.")
    ] = None,
    cuts: Annotated[
        str,
        typer.Option(
            help="Flow where a new scene starts: estimate (like any other), blank (unknown), or "
            "hold (that of the pair before)."
        ),
    ] = "estimate",
    stats: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write motion, confidence and cuts of each frame."),
    ] = None,
    start: Annotated[str | None, typer.Option(help="First frame: 120, or 3.5s.")] = None,
    end: Annotated[str | None, typer.Option(help="Frame to stop before: 120, or 3.5s.")] = None,
    stride: Annotated[int, typer.Option(help="Use every N-th frame.")] = 1,
    scale: Annotated[float, typer.Option(help="Scale the frames by this first.")] = 1.0,
    fps: Annotated[
        float | None, typer.Option(min=0.01, max=480, help="Rate of a written video.")
    ] = None,
    encoder: options.Encoder = None,
    on_error: Annotated[str, typer.Option(help="At a broken frame: stop, or skip it.")] = "stop",
    restart: Annotated[
        bool, typer.Option("--restart", help="Start from scratch instead of resuming.")
    ] = False,
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    full_size: options.FullSize = False,
    maximum: options.Maximum = None,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Estimate the flow from each frame of INPUT to the next.

    The name of the output decides what is written; several can be given. The same command
    resumes a run that was stopped, by Ctrl-C or a kill.

    Examples:

      dicl-flow video clip.mp4 -o flow.mp4 --show frame,wheel

      dicl-flow video 'frames/*.png' -o flows --format npz --stats motion.csv

      dicl-flow video clip.mp4 -o flows --backward --occlusion --min-confidence 0.5

      dicl-flow video film.mov -o flow.gif --cuts blank

      dicl-flow video camera:0 -o flow.mp4 --end 10s
    """
    if len(inputs) > 1:
        raise quote_pattern(inputs, "one is taken")
    from ..data.video_frames import check_source
    from ..errors import unknown_name
    from ..weights import resolve

    check_source(inputs[0])
    resolve(weights)  # a missing file is named before torch is imported, which takes seconds

    from ..estimation.estimator import load
    from ..estimation.sequence import FlowSequence
    from ..video import (
        CUTS,
        STILL_RATE,
        Checkpoint,
        Moment,
        Outputs,
        Selection,
        check_rate,
        open_source,
        refuse_one_name,
        stamp,
    )
    from .watching import run_watched

    if cuts not in CUTS:
        raise unknown_name("--cuts", cuts, CUTS)
    selection = Selection(
        Moment.parse("--start", start), Moment.parse("--end", end), stride, scale, on_error
    )
    both = (backward, occlusion)
    wanted = Outputs(tuple(output), stats, show, file_format, *both, maximum, encoder)
    kinds = wanted.kinds
    check_outputs(
        [stats, *(path for path, kind in kinds.items() if kind != "folder")],
        folders=[path for path, kind in kinds.items() if kind == "folder"],
        inputs=[Path(inputs[0]), resolve(weights)],
    )
    source = open_source(inputs[0])
    refuse_inputs(output, folders_of(source.files))
    files = selection.chosen(source.files)
    if "folder" in kinds.values():
        refuse_one_name(files, wanted.suffix)
    rate = fps or (source.rate or STILL_RATE) / stride
    for path in output:
        check_rate(path, rate)
    estimator = load(weights, quality=quality, full_size=full_size, **how)
    settings = {
        "input": source.stamp,
        "output": [path.resolve() for path in [*output, *([stats] if stats else [])]],
        **{"show": show, "format": file_format, "start": start, "end": end, "stride": stride},
        **{"scale": scale, "fps": fps, "encoder": encoder, "max": maximum},
        "weights": stamp(resolve(weights)),
        **{"backward": backward, "occlusion": occlusion, "min_confidence": min_confidence},
        **{"cuts": cuts, "quality": quality, "full_size": full_size},
        **{name: str(getattr(estimator, name)) for name in ("device", "precision", "backend")},
    }
    if source.scenes and not quiet:
        typer.echo("KITTI's pairs: flow is estimated from each _10 to its _11 only", err=True)
    used = partial(selection.used_frames, source)
    summary = run_watched(
        source,
        selection,
        FlowSequence(estimator, backward=wanted.needs_backward),
        partial(wanted.writers, rate=rate),
        Checkpoint(output[0], settings, frames=files, used=used, restart=restart),
        min_confidence=min_confidence,
        cuts=cuts,
        quiet=quiet,
    )
    summary |= {name: settings[name] for name in ("device", "backend", "precision")}
    options.report(summary, quiet=quiet, as_json=as_json)
