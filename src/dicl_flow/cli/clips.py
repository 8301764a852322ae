"""What the commands that take a clip share: their settings, runs that resume, their progress."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from ..errors import StopSignal, counted
from . import options
from .inputs_outputs import check_outputs, check_weights, quote_pattern
from .options import Size, flag, in_time, make_bar, optional, showing

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator, FlowSequence
    from ..video import Checkpoint, Frame, FrameFlow, Selection, Source, State, Writer

_NOT_RECORDED = {"inputs", "stats", "mask", "on_error", "restart", "max_size", "memory_limit"}
_NOT_RECORDED |= {"quiet", "as_json", "fenced", "view", "port"}
"""Options that may differ when a run is resumed, or that are recorded as files."""


class ClipSettings(options.EstimateSettings):
    """The settings of a command that processes a clip, and resumes it if it was stopped."""

    inputs: list[str]
    start: str | None = optional("First frame of the clip: 120, or 3.5s.")
    end: str | None = optional("Frame of the clip to stop before: 120, or 3.5s.")
    fps: float | None = optional("Rate of a written video; default: the clip's.", min=0.01, max=480)
    encoder: str | None = optional(
        "FFmpeg encoder of a video, such as h264_nvenc or libx264:crf=23:preset=slow.",
        metavar="NAME[:KEY=VALUE…]",
    )
    color_space: options.ColorSpace = None
    layer: options.Layer = None
    restart: bool = flag("--restart", "Start a clip from scratch instead of resuming it.")

    def check_clip(self, taken: str = "one clip is taken") -> str:
        """Return the clip; refuse several, one that is missing, and missing weights."""
        if len(self.inputs) > 1:
            raise quote_pattern(self.inputs, taken)
        from ..data.frames import check_source

        check_source(self.inputs[0])
        check_weights(self.weights)
        return self.inputs[0]

    def check_output(self, output: Path, *tables: Path | None) -> None:
        """Refuse a video, a folder of images or tables that cannot be written."""
        to_folder = output.is_dir() or not output.suffix
        files, folders = ([], [output]) if to_folder else ([output], [])
        inputs = [Path(self.inputs[0]), self.weights]
        check_outputs([*files, *tables], folders=folders, inputs=inputs)

    def select(self, stride: int, scale: float, on_error: str, **more: bool) -> "Selection":
        """Return which frames to use, from --start to --end."""
        from ..video import Moment, Selection

        start, end = Moment.parse("--start", self.start), Moment.parse("--end", self.end)
        return Selection(start, end, stride, scale, on_error, **more)

    def record(
        self, source: "Source", estimator: "FlowEstimator", outputs: Sequence[Path]
    ) -> dict[str, Any]:
        """Return what must be the same to resume a run: all options that are not excluded."""
        from ..video import stamp
        from ..weights import resolve

        return {
            "input": source.stamp,
            **self.chosen(*(name for name in self.option_types() if name not in _NOT_RECORDED)),
            "output": [path.resolve() for path in outputs],
            "weights": stamp(resolve(self.weights)),
            **{name: stamp(path) for name, path in self.chosen("mask").items() if path},
            **options.compute_summary(estimator),
        }

    def process(
        self,
        source: "Source",
        selection: "Selection",
        sequence: "FlowSequence",
        writers: "Callable[[Path], Sequence[Writer]]",
        outputs: Sequence[Path],
    ) -> dict[str, Any]:
        """Process a clip and return the summary; a signal stops it with exit code 130.

        `writers` makes the writers, given a folder for unfinished parts.
        """
        from ..estimation.estimator import computed
        from ..video import Checkpoint, run

        checkpoint = Checkpoint(
            outputs[0],
            self.record(source, sequence.estimator, outputs),
            frames=selection.chosen(source.files),
            used=partial(selection.used_frames, source),
            restart=self.restart,
            remember=not source.live,
        )
        if checkpoint.finished:
            state = checkpoint.state
            counts = {"flows": state.done - state.missing, "missing_flows": state.missing}
            return self.already_finished(checkpoint, outputs, **counts, lost_frames=state.lost)
        made = writers(checkpoint.folder)
        expected = selection.expected_flows(source)
        shown = show_progress(checkpoint.done, expected, quiet=self.quiet, rate=source.rate)
        with checkpoint, StopSignal() as signal, shown as progress:
            written = run(
                *(source, selection, sequence, made, checkpoint),
                watch=lambda flow: progress(flow) and not signal.received,
                on_progress=progress.progress,
                **self.chosen("min_confidence", "cuts"),
            )
        if not written:
            done = checkpoint.done
            typer.echo(
                f"stopped; {counted(done, 'flow')} done; the same command resumes it", err=True
            )
            raise typer.Exit(130)
        size = progress.frame_size
        seen = computed(sequence.estimator, size) if size else {}
        summary = progress.summary(checkpoint.state) | seen
        for writer in made:
            summary |= writer.summary()
        return {"written": written, **summary}

    def already_finished(
        self, checkpoint: "Checkpoint", outputs: Sequence[Path], **counts: int
    ) -> dict[str, Any]:
        """Return the summary of a run that was finished before."""
        with checkpoint:
            if not self.quiet:
                typer.echo("already finished; --restart computes it again", err=True)
        return {"already_finished": outputs, **counts}


class VideoProgress:
    """Reports broken frames and progress, and keeps the numbers for the summary."""

    def __init__(
        self,
        done: int,
        total: int | None,
        print_line: Callable[[str], None],
        show: Callable[["VideoProgress"], None],
        rate: float | None = None,
    ) -> None:
        self.before, self.done, self.total, self._rate = done, done, total, rate
        self._print_line, self._show = print_line, show
        self._start = perf_counter()
        self.frame_size: Size | None = None  # known after the first flow
        self._broken: list[Frame] = []  # neighbours with the same problem
        self._late = 0  # frames that come later than the rate says

    def __call__(self, flow: "FrameFlow") -> bool:
        """Note a flow; True: continue."""
        for frame in flow.broken_after(self._broken[-1].number if self._broken else -1):
            if self._broken and self._broken[-1].problem != frame.problem:
                self.print_broken()
            self._broken.append(frame)
        if not flow.problem:
            self.print_broken()
            self.frame_size = Size(*flow.images[0].shape[:2])
            steps = flow.following.number - flow.frame.number
            self._late += (flow.seconds or 0) * (self._rate or 0) > 1.5 * steps
        return True

    def print_broken(self) -> None:
        """Print which frames were skipped since the last time."""
        if self._broken:
            first, last = self._broken[0], self._broken[-1]
            which = f"frame {first.number} ({first.name})"
            if first is not last:
                which = f"frames {first.number} to {last.number}"
            self._print_line(f"skipped {which}: {last.problem}")
        self._broken.clear()

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
            return f"{counted(self.done, 'flow')}, {self.speed:.2g} frames/s"
        text = f"{self.done} of {counted(self.total, 'flow')}, {self.done / self.total:.0%}"
        if self.done == self.before:
            return text
        left = in_time((self.total - self.done) / self.speed)
        return f"{text}, {self.speed:.2g} frames/s, about {left} left"

    def summary(self, state: "State") -> dict[str, Any]:
        """Return what to print at the end."""
        return {
            "size": self.frame_size,
            "flows": self.done - state.missing,
            "missing_flows": state.missing,
            "lost_frames": state.lost,
            "flows_of_earlier_runs": self.before,
            **self._unevenness(),
            "seconds": perf_counter() - self._start,
            "frames_per_second": self.speed,
        }

    def _unevenness(self) -> dict[str, str]:
        """Return what to print of a variable rate; nothing if it is constant."""
        if not self._late:
            return {}
        which = f"{self._late} frames are" if self._late > 1 else "1 frame is"
        longer = f"{which} shown for longer than 1/{self._rate:.4g} s"
        return {"uneven": f"{longer}; a written video has a constant rate"}


@contextmanager
def show_progress(
    done: int, total: int | None, *, quiet: bool, rate: float | None = None
) -> Iterator[VideoProgress]:
    """Show a bar with frames/s and the time left, or a line every half minute."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    speed = TextColumn("{task.fields[speed]}")
    bar = make_bar("flow", BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    task = bar.add_task("", total=total, completed=done, speed="")

    def show(progress: VideoProgress) -> None:
        speed = f"{progress.speed:.1f} frames/s"
        bar.update(task, completed=progress.done, total=progress.total, speed=speed)

    progress = VideoProgress(done, total, bar.console.print, show, rate)
    with showing(bar, progress.line, quiet=quiet):
        try:
            yield progress
        finally:
            progress.print_broken()
