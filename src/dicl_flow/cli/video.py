"""The command `video`, and what it shares with slow motion: progress, and runs that resume."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import unknown_name
from . import options
from .inputs_outputs import (
    check_outputs,
    check_weights,
    folders_of,
    quote_pattern,
    refuse_inputs,
)
from .printing import Size, make_bar, showing

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator, FlowSequence
    from ..video import FrameFlow, Outputs, Selection, Source, Writer

_NOT_RECORDED = {"inputs", "stats", "on_error", "restart", "max_size", "memory_limit"}
_NOT_RECORDED |= {"quiet", "as_json"}
"""Options that may differ when a run is resumed, or that are recorded as files."""


class ClipSettings(options.ComputeSettings):
    """The settings of a command that processes a clip, and resumes it if it was stopped."""

    inputs: list[str]
    start: str | None
    end: str | None
    restart: bool
    weights: options.Weights = None

    def select(self, stride: int, scale: float, on_error: str) -> "Selection":
        """Return which frames to use, from --start to --end."""
        from ..video import Moment, Selection

        start, end = Moment.parse("--start", self.start), Moment.parse("--end", self.end)
        return Selection(start, end, stride, scale, on_error)

    def record(
        self, source: "Source", estimator: "FlowEstimator", outputs: Sequence[Path]
    ) -> dict[str, Any]:
        """Return what must be the same to resume a run: all options that are not excluded."""
        from ..video import stamp
        from ..weights import resolve

        names = [name for name in self.option_types() if name not in _NOT_RECORDED]
        return {
            "input": source.stamp,
            **{name: getattr(self, name) for name in names},
            "output": [path.resolve() for path in outputs],
            "weights": stamp(resolve(self.weights)),
            **options.compute_summary(estimator),
        }

    def process(
        self,
        source: "Source",
        selection: "Selection",
        sequence: "FlowSequence",
        writers: "Callable[[Path], Sequence[Writer]]",
        outputs: Sequence[Path],
        *,
        min_confidence: float | None = None,
        cuts: str = "estimate",
    ) -> dict[str, Any]:
        """Process a clip and return the summary; a signal stops it with exit code 130.

        `writers` makes the writers, given a folder for unfinished parts.
        """
        from ..estimation.estimator import computed
        from ..training.stopping import StopSignal
        from ..video import Checkpoint, run

        checkpoint = Checkpoint(
            outputs[0],
            self.record(source, sequence.estimator, outputs),
            frames=selection.chosen(source.files),
            used=partial(selection.used_frames, source),
            restart=self.restart,
        )
        shown = show_progress(checkpoint.done, selection.expected_flows(source), quiet=self.quiet)
        with checkpoint, StopSignal() as signal, shown as progress:
            written = run(
                *(source, selection, sequence, writers(checkpoint.folder), checkpoint),
                watch=lambda flow: progress(flow) and not signal.received,
                min_confidence=min_confidence,
                cuts=cuts,
                on_progress=progress.progress,
            )
        if not written:
            done = f"{checkpoint.done} flows are done"
            typer.echo(f"stopped; {done}; the same command resumes it", err=True)
            raise typer.Exit(130)
        size = progress.frame_size
        seen = computed(sequence.estimator, size) if size else {}
        return {"written": written, **progress.summary(checkpoint.state.missing), **seen}


class Video(ClipSettings):
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

    inputs: list[str] = Argument(
        ..., metavar="INPUT", help="Video, folder or 'glob' of frames, or camera:0."
    )
    output: list[Path] = Option(
        ..., "--output", "-o", help="Video (.mp4 .mov .mkv .webm .gif), array (.npy) or folder."
    )
    show: str | None = Option(
        None,
        help="Pictures of a video: one or several, with commas, of wheel (default), frame, "
        "overlay, arrows, difference, confidence, occlusion.",
    )
    format: str | None = Option(
        None, "--format", help="Files in a folder: flo (default), npz, png …"
    )
    backward: bool = Option(
        False, "--backward", help="Write the backward flow too: to a folder or an array."
    )
    occlusion: bool = Option(
        False, "--occlusion", help="Write masks of hidden pixels, to a folder."
    )
    min_confidence: float | None = Option(
        None, min=0, max=1, help="Flow with less confidence becomes unknown."
    )
    cuts: str = Option(
        "estimate",
        help="Flow where a new scene starts: estimate (like any other), blank (unknown), or "
        "hold (that of the pair before).",
    )
    stats: Path | None = Option(
        None, metavar="CSV", help="Write motion, confidence and cuts of each frame."
    )
    start: str | None = Option(None, help="First frame: 120, or 3.5s.")
    end: str | None = Option(None, help="Frame to stop before: 120, or 3.5s.")
    stride: int = Option(1, help="Use every N-th frame.")
    scale: float = Option(1.0, help="Scale the frames by this first.")
    fps: float | None = Option(None, min=0.01, max=480, help="Rate of a written video.")
    encoder: options.Encoder = None
    on_error: str = Option("stop", help="At a broken frame: stop, or skip it.")
    restart: bool = Option(False, "--restart", help="Start from scratch instead of resuming.")
    weights: options.Weights = None
    quality: options.Quality = "normal"
    full_size: options.FullSize = False
    max: options.Maximum = None
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        if len(self.inputs) > 1:
            raise quote_pattern(self.inputs, "one is taken")
        from ..data.frames import check_source

        check_source(self.inputs[0])
        check_weights([self.weights])

        from ..estimation.estimator import FlowSequence
        from ..video import CUTS, STILL_RATE, check_rate, open_source, refuse_one_name

        if self.cuts not in CUTS:
            raise unknown_name("--cuts", self.cuts, CUTS)
        selection = self.select(self.stride, self.scale, self.on_error)
        wanted = self._wanted()
        source = open_source(self.inputs[0])
        refuse_inputs(self.output, folders_of(source.files))
        if "folder" in wanted.kinds.values():
            refuse_one_name(selection.chosen(source.files), wanted.suffix)
        rate = self.fps or (source.rate or STILL_RATE) / self.stride
        for path in self.output:
            check_rate(path, rate)
        estimator = self.load()
        if source.scenes and not self.quiet:
            typer.echo("KITTI's pairs: flow is estimated from each _10 to its _11 only", err=True)
        summary = self.process(
            source,
            selection,
            FlowSequence(estimator, backward=wanted.needs_backward),
            partial(wanted.writers, rate=rate),
            [*self.output, *([self.stats] if self.stats else [])],
            min_confidence=self.min_confidence,
            cuts=self.cuts,
        )
        self.report(summary | options.compute_summary(estimator))

    def _wanted(self) -> "Outputs":
        """Return what to write; refuse what cannot be written."""
        from ..video import Outputs

        names = ("stats", "show", "format", "backward", "occlusion", "max", "encoder")
        chosen = {name: getattr(self, name) for name in names}
        wanted = Outputs(tuple(self.output), **chosen)
        check_outputs(
            [self.stats, *(path for path, kind in wanted.kinds.items() if kind != "folder")],
            folders=[path for path, kind in wanted.kinds.items() if kind == "folder"],
            inputs=[Path(self.inputs[0]), self.weights],
        )
        return wanted


class VideoProgress:
    """Reports broken frames and progress, and keeps the numbers for the summary."""

    def __init__(
        self,
        done: int,
        total: int | None,
        print_line: Callable[[str], None],
        show: Callable[["VideoProgress"], None],
    ) -> None:
        self.before, self.done, self.total = done, done, total
        self._print_line, self._show = print_line, show
        self._start = perf_counter()
        self.frame_size: tuple[int, int] | None = None
        """(height, width) of the frames, known after the first flow."""

    def __call__(self, flow: "FrameFlow") -> bool:
        """Note a flow; True: continue."""
        first = self.done == self.before or flow.frame.scene
        for frame in (flow.following, flow.frame)[: 2 if first else 1]:
            if frame.problem:
                self._print_line(f"skipped frame {frame.number} ({frame.name}): {frame.problem}")
        if not flow.problem:
            height, width = flow.images[0].shape[:2]
            self.frame_size = (height, width)
        return True

    def progress(self, done: int, total: int | None) -> None:
        """Note how many flows are done, and show it."""
        self.done, self.total = done, total
        self._show(self)

    @property
    def speed(self) -> float:
        """Frames per second in this run."""
        return (self.done - self.before) / (perf_counter() - self._start)

    def line(self) -> str:
        """The progress so far: "120 of 899 flows, 13 %, 2.1 frames/s, about 6 min left"."""
        if not self.total:
            return f"{self.done} flows, {self.speed:.2g} frames/s"
        text = f"{self.done} of {self.total} flows, {self.done / self.total:.0%}"
        if self.done == self.before:
            return text
        minutes = (self.total - self.done) / self.speed / 60
        return f"{text}, {self.speed:.2g} frames/s, about {minutes:.0f} min left"

    def summary(self, missing: int) -> dict[str, Any]:
        """Return what to print at the end."""
        return {
            "size": Size(*self.frame_size) if self.frame_size else None,
            "flows": self.done - missing,
            "missing_flows": missing,
            "flows_of_earlier_runs": self.before,
            "seconds": perf_counter() - self._start,
            "frames_per_second": self.speed,
        }


@contextmanager
def show_progress(done: int, total: int | None, *, quiet: bool) -> Iterator[VideoProgress]:
    """Show a bar with frames/s and the time left, or a line every half minute."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    speed = TextColumn("{task.fields[speed]}")
    bar = make_bar("flow", BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    task = bar.add_task("", total=total, completed=done, speed="")

    def show(progress: VideoProgress) -> None:
        speed = f"{progress.speed:.1f} frames/s"
        bar.update(task, completed=progress.done, total=progress.total, speed=speed)

    progress = VideoProgress(done, total, bar.console.print, show)
    with showing(bar, progress.line, quiet=quiet):
        yield progress
