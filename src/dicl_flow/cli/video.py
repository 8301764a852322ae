from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .outputs import check_outputs, folders_of, quote_pattern, refuse_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..video import Writer


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
        bool, typer.Option("--backward", help="Write the way back too: to a folder or an array.")
    ] = False,
    occlusion: Annotated[
        bool, typer.Option("--occlusion", help="Write masks of what is hidden, to a folder.")
    ] = False,
    min_confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="Flow of less confidence becomes unknown.")
    ] = None,
    cuts: Annotated[
        str,
        typer.Option(
            help="Flow where a new scene begins: estimate (as any other), blank (unknown), or "
            "hold (that of the pair before)."
        ),
    ] = "estimate",
    stats: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Motion, confidence and cuts by frame.")
    ] = None,
    start: Annotated[str | None, typer.Option(help="First frame: 120, or 3.5s.")] = None,
    end: Annotated[str | None, typer.Option(help="Frame to end before: 120, or 3.5s.")] = None,
    stride: Annotated[int, typer.Option(help="Take every N-th frame.")] = 1,
    scale: Annotated[float, typer.Option(help="Resize the frames before all else.")] = 1.0,
    fps: Annotated[
        float | None, typer.Option(min=0.01, max=480, help="Rate of a written video.")
    ] = None,
    on_error: Annotated[str, typer.Option(help="At a broken frame: stop, or skip it.")] = "stop",
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew instead of going on.")
    ] = False,
    weights: options.Weights = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    backend: options.Backend = "auto",
    quality: options.Quality = "normal",
    memory_limit: options.MemoryLimit = None,
    full_size: options.FullSize = False,
    maximum: options.Maximum = None,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Estimate the flow from each frame of INPUT to the next.

    The output decides what is written; several can be given. A run that was stopped, by Ctrl-C
    or a power cut, goes on when the same command is given again.

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
        FlowFiles,
        FlowStack,
        Moment,
        PictureVideo,
        Selection,
        StatisticsTable,
        check_rate,
        exact_rate,
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
    kinds = _kinds(output)
    _check_outputs(kinds, stats, [Path(inputs[0]), resolve(weights)])
    panels = _check_options(kinds, show, file_format, maximum, backward, occlusion)
    both = backward or occlusion or "occlusion" in panels
    source = open_source(inputs[0])
    refuse_inputs(output, folders_of(source.files))
    files, suffix = selection.chosen(source.files), f".{file_format or 'flo'}"
    if "folder" in kinds.values():
        refuse_one_name(files, suffix)
    rate = fps or (source.rate or STILL_RATE) / stride
    for path in output:
        check_rate(path, rate)
    how = options.compute(device, precision, backend, memory_limit)
    estimator = load(weights, quality=quality, full_size=full_size, **how)
    settings = {
        "input": source.stamp,
        "output": [path.resolve() for path in [*output, *([stats] if stats else [])]],
        **{"show": show, "format": file_format, "start": start, "end": end, "stride": stride},
        **{"scale": scale, "fps": fps, "max": maximum, "weights": stamp(resolve(weights))},
        **{"backward": backward, "occlusion": occlusion, "min_confidence": min_confidence},
        **{"cuts": cuts, "quality": quality, "full_size": full_size},
        **{name: str(getattr(estimator, name)) for name in ("device", "precision", "backend")},
    }

    def writers(parts: Path) -> "list[Writer]":
        make: dict[str, Callable[[Path], Writer]] = {
            "folder": lambda path: FlowFiles(path, suffix, backward=backward, occlusion=occlusion),
            "array": lambda path: FlowStack(path, parts, backward=backward),
            "video": lambda path: PictureVideo(path, parts, exact_rate(rate), panels, maximum),
        }
        made = [make[kind](path) for path, kind in kinds.items()]
        return [*made, *([StatisticsTable(stats, parts)] if stats else [])]

    used = partial(selection.used_frames, source)
    if source.scenes and not quiet:
        typer.echo("KITTI's pairs: flow from each _10 to its _11 only", err=True)
    summary = run_watched(
        source,
        selection,
        FlowSequence(estimator, backward=both),
        writers,
        Checkpoint(output[0], settings, frames=files, used=used, restart=restart),
        min_confidence=min_confidence,
        cuts=cuts,
        quiet=quiet,
    )
    summary |= {name: settings[name] for name in ("device", "backend", "precision")}
    options.report(summary, quiet=quiet, as_json=as_json)


def _kinds(outputs: list[Path]) -> dict[Path, str]:
    """Return what each output is: a video, an array or a folder."""
    from ..errors import InputError

    kinds = {path: output_kind(path) for path in outputs}
    if len(set(kinds.values())) < len(outputs):
        raise InputError("give one output of a kind: one video, one array, one folder")
    return kinds


def _check_outputs(kinds: dict[Path, str], stats: Path | None, inputs: list[Path]) -> None:
    from ..errors import InputError

    folders = [path for path, kind in kinds.items() if kind == "folder"]
    files = [path for path, kind in kinds.items() if kind != "folder"]
    check_outputs([*files, stats], folders=folders, inputs=inputs)
    if stats is not None and stats.suffix.lower() != ".csv":
        raise InputError(f"{stats}: the statistics are written as .csv")


def _check_options(
    kinds: dict[Path, str],
    show: str | None,
    file_format: str | None,
    maximum: float | None,
    backward: bool,
    occlusion: bool,
) -> tuple[str, ...]:
    """Return the pictures to show, refusing early what makes no sense for these outputs."""
    from ..errors import InputError, unknown_name
    from ..files import FLOW_SUFFIXES
    from ..video import parse_panels

    panels = parse_panels("wheel" if show is None else show)
    if maximum is not None and not maximum > 0:
        raise InputError(f"--max must be positive, got {maximum:g}")
    if file_format is not None and f".{file_format}" not in FLOW_SUFFIXES:
        raise unknown_name("--format", file_format, [suffix[1:] for suffix in FLOW_SUFFIXES])
    for option, given, fitting in (
        ("--show", show is not None, ("video",)),
        ("--format", file_format is not None, ("folder",)),
        ("--backward", backward, ("folder", "array")),
        ("--occlusion", occlusion, ("folder",)),
    ):
        if given and not set(fitting) & set(kinds.values()):
            hint = "; a video has --show occlusion" if option == "--occlusion" else ""
            raise InputError(
                f"{option} is for a {' or '.join(fitting)}, and no output is one{hint}"
            )
    return panels


def output_kind(output: Path) -> str:
    """Return what an output is, by its name: video, array or folder."""
    from ..data.video_frames import pyav
    from ..errors import InputError
    from ..video import CODINGS

    suffix = output.suffix.lower()
    if output.is_dir() or not suffix:
        return "folder"
    if suffix in CODINGS:
        pyav()
        return "video"
    if suffix == ".npy":
        return "array"
    raise InputError(
        f"{output}: a video ends in {', '.join(CODINGS)}, an array in .npy, a folder has no ending"
    )
