from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from ..video import FrameFlow, Writer

_FRAMES_PER_SECOND = 25.0  # of images, which have no time


def video(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Video, folder or 'glob' of frames, or camera:0.")
    ],
    output: Annotated[
        list[Path],
        typer.Option("--output", "-o", help="Video (.mp4 .mkv .webm), array (.npy) or folder."),
    ],
    show: Annotated[
        str | None,
        typer.Option(
            help="Pictures of a video: one or several, with commas, of wheel (default), frame, "
            "overlay, arrows, difference, confidence."
        ),
    ] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="Files in a folder: flo (default), npz, png …")
    ] = None,
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
    memory_limit: options.MemoryLimit = None,
    maximum: options.Maximum = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Estimate the flow from each frame of INPUT to the next.

    The output decides what is written; several can be given. A run that was stopped, by Ctrl-C
    or a power cut, goes on when the same command is given again.

    Examples:

      dicl-flow video clip.mp4 -o flow.mp4 --show frame,wheel

      dicl-flow video 'frames/*.png' -o flows --format npz --stats motion.csv

      dicl-flow video camera:0 -o flow.mp4 --end 10s
    """
    from ..estimator import load
    from ..sequence import FlowSequence
    from ..training.stopping import StopSignal
    from ..video import Checkpoint, Moment, Selection, open_source, run, stamp
    from ..weights import resolve

    selection = Selection(
        Moment.parse("--start", start), Moment.parse("--end", end), stride, scale, on_error
    )
    kinds = _check_outputs(Path(source), output, stats, show, file_format, maximum)
    opened = open_source(source)
    estimator = load(weights, device, precision, backend, options.in_bytes(memory_limit))
    rate = fps or (opened.rate or _FRAMES_PER_SECOND) / stride
    settings = {
        "input": opened.stamp,
        "output": [path.resolve() for path in [*output, *([stats] if stats else [])]],
        **{"show": show, "format": file_format, "start": start, "end": end, "stride": stride},
        **{"scale": scale, "fps": rate, "max": maximum, "weights": stamp(resolve(weights))},
        **{name: str(getattr(estimator, name)) for name in ("device", "precision", "backend")},
    }
    checkpoint = Checkpoint(output[0], settings, restart=restart)
    writers = [
        _writer(path, kind, checkpoint.folder, rate, show or "wheel", file_format, maximum)
        for path, kind in kinds.items()
    ]
    if stats is not None:
        writers.append(_table(stats, checkpoint.folder))
    total = selection.expected(opened)
    with StopSignal() as signal, _watched(total, checkpoint.done, quiet=quiet) as found:
        written = run(
            opened,
            selection,
            FlowSequence(estimator),
            writers,
            checkpoint,
            lambda flow: found(flow) and not signal.received,
        )
    if not written:
        typer.echo(f"stopped; {checkpoint.done} flows are done, the same command goes on", err=True)
        raise typer.Exit(130)
    used = {name: settings[name] for name in ("device", "backend", "precision")}
    summary = {"written": ", ".join(map(str, written)), **found.summary(), **used}
    options.report(summary, quiet=quiet, as_json=as_json)


def _check_outputs(
    source: Path,
    outputs: list[Path],
    stats: Path | None,
    show: str | None,
    file_format: str | None,
    maximum: float | None,
) -> dict[Path, str]:
    """Return what each output is, refusing early what cannot be written or makes no sense."""
    from ..errors import InputError, unknown_name
    from ..files import FLOW_SUFFIXES
    from ..video import parse_panels

    kinds = {path: _kind(path) for path in outputs}
    options.check_outputs([*(path for path, kind in kinds.items() if kind != "folder"), stats])
    options.check_folders([path for path, kind in kinds.items() if kind == "folder"])
    if len(set(kinds.values())) < len(outputs):
        raise InputError("give one output of a kind: one video, one array, one folder")
    inputs = source.resolve(), source.parent.resolve() if not source.exists() else None
    for path in outputs:
        if path.resolve() in inputs:
            raise InputError(f"{path} is the input as well; write elsewhere")
    if stats is not None and stats.suffix.lower() != ".csv":
        raise InputError(f"{stats}: the statistics are written as .csv")
    if show is not None:
        parse_panels(show)
    if maximum is not None and not maximum > 0:
        raise InputError(f"--max must be positive, got {maximum:g}")
    if file_format is not None and f".{file_format}" not in FLOW_SUFFIXES:
        raise unknown_name("--format", file_format, [suffix[1:] for suffix in FLOW_SUFFIXES])
    for option, value, kind in (("--show", show, "video"), ("--format", file_format, "folder")):
        if value is not None and kind not in kinds.values():
            raise InputError(f"{option} is for a {kind}, and no output is one")
    return kinds


def _kind(output: Path) -> str:
    from ..data.video_frames import pyav
    from ..errors import InputError
    from ..video import ENCODERS

    suffix = output.suffix.lower()
    if output.is_dir() or not suffix:
        return "folder"
    if suffix in ENCODERS:
        pyav()
        return "video"
    if suffix == ".npy":
        return "array"
    raise InputError(
        f"{output}: a video ends in {', '.join(ENCODERS)}, an array in .npy, a folder has no ending"
    )


def _writer(
    output: Path,
    kind: str,
    parts: Path,
    rate: float,
    show: str,
    file_format: str | None,
    maximum: float | None,
) -> "Writer":
    from fractions import Fraction

    from ..video import FlowFiles, FlowStack, PictureVideo, parse_panels

    if kind == "folder":
        return FlowFiles(output, f".{file_format or 'flo'}")
    if kind == "array":
        return FlowStack(output, parts)
    exact = Fraction(rate).limit_denominator(1001)  # 29.97 is 30000/1001
    return PictureVideo(output, parts, exact, parse_panels(show), maximum)


def _table(output: Path, parts: Path) -> "Writer":
    from ..video import StatisticsTable

    return StatisticsTable(output, parts)


class _Watch:
    """Moves the bar, tells of broken frames, and remembers what there is to report."""

    def __init__(self, advance: Callable[[], None], tell: Callable[[str], None]) -> None:
        self._advance, self._tell = advance, tell
        self._start, self._count, self._size = perf_counter(), 0, ""
        self._skipped = 0

    def __call__(self, flow: "FrameFlow") -> bool:
        self._count += 1
        self._skipped += bool(flow.problem)
        for frame in (flow.following, flow.frame)[: 2 if self._count == 1 else 1]:
            if frame.problem:
                self._tell(f"skipped frame {frame.number} ({frame.name}): {frame.problem}")
        if not flow.problem:
            height, width = flow.images[0].shape[:2]
            self._size = f"{width}x{height}"
        self._advance()
        return True

    def summary(self) -> dict[str, Any]:
        seconds = perf_counter() - self._start
        return {
            "size": self._size,
            "flows": self._count,
            "without_flow": self._skipped,
            "seconds": seconds,
            "frames_per_second": self._count / seconds,
        }


@contextmanager
def _watched(total: int | None, done: int, *, quiet: bool) -> Iterator[_Watch]:
    """Show a bar with frames/s and the time left, where someone watches."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    watched = console.is_terminal and not quiet
    speed = TextColumn("{task.fields[speed]}")
    columns = ("flow", BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not watched) as progress:
        flows = None if total is None else max(total - 1, 0)
        task = progress.add_task("", total=flows, completed=done, speed="")

        def advance() -> None:
            progress.advance(task)
            speed = progress.tasks[0].speed
            progress.update(task, speed=f"{speed:.1f} frames/s" if speed else "")

        yield _Watch(advance, lambda text: progress.console.print(text, highlight=False))
