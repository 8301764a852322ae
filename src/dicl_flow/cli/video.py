"""The commands `video` and `interpolate`: clips, whose runs resume; frames between two frames."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isclose
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError, StopSignal, counted, unknown_name
from . import options
from .inputs_outputs import (
    assumed,
    check_outputs,
    check_weights,
    describe_clip,
    describe_kept,
    folders_of,
    quote_pattern,
    read_plates,
    refuse_inputs,
    refuse_unlike,
)
from .options import Size, flag, in_time, make_bar, nothing_written, optional, showing

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator, FlowSequence
    from ..video import (
        Checkpoint,
        Covered,
        Frame,
        FrameFlow,
        Outputs,
        Selection,
        Source,
        State,
        Writer,
    )

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
      dicl-flow video camera:0 --view --quality fast
    """

    inputs: list[str] = Argument(
        ..., metavar="INPUT", help="Video, folder or 'glob' of frames, or camera:0."
    )
    output: list[Path] = options.output(
        "Video (.mp4 .mov .mkv .webm .gif), array (.npy), folder.", default=[]
    )
    view: bool = flag("--view", "Show the flow in the browser, as fast as it comes; no -o.")
    port: int = Option(8018, min=0, max=65535, help="Port of --view; 0: a free one.")
    show: str | None = optional(
        "Pictures of a video: one or several, with commas, of wheel (default), frame, "
        "overlay, arrows, difference, confidence, occlusion."
    )
    key: bool | None = optional(
        "Explain pictures with captions and keys; on with --show.", "--key/--no-key"
    )
    format: str | None = optional("Files in a folder: flo (default), npz, png …")
    backward: bool = flag("--backward", "Write backward flow too, to a folder or an array.")
    occlusion: bool = flag("--occlusion", "Write masks of hidden pixels, to a folder.")
    min_confidence: options.MinConfidence = None
    cuts: str = Option(
        "estimate",
        help="Flow where a new scene starts: estimate (like any other), blank (unknown), or "
        "hold (that of the pair before).",
    )
    stats: Path | None = optional("Write motion, confidence, cuts by frame.", metavar="CSV")
    region: str | None = optional("Statistics of these pixels only.", metavar="X,Y,WIDTH,HEIGHT")
    mask: Path | None = optional("The same, of the pixels where this image is not black.")
    stride: int = Option(1, help="Use every N-th frame.")
    scale: float = Option(1.0, max=8, help="Scale the frames by this first.")
    on_error: str = Option("stop", help="At a broken or lost frame: stop, or skip it.")
    across_gaps: bool = flag("--across-gaps", "Skip such frames, and estimate flow across them.")
    full_size: options.FullSize = False
    max: options.Maximum = None

    def __call__(self) -> None:
        clip = self.check_clip("one is taken")
        self._check_view()
        if self.view:
            self.report(self._show())
            return

        from ..estimation.estimator import FlowSequence
        from ..video import (
            CONTAINERS,
            CUTS,
            STILL_RATE,
            check_rate,
            find_sound,
            lost_of,
            open_source,
            refuse_one_name,
        )

        reading = self.reading
        if self.cuts not in CUTS:
            raise unknown_name("--cuts", self.cuts, CUTS)
        more = self.chosen("across_gaps")
        selection = self.select(self.stride, self.scale, self.on_error, **more)
        wanted = self._wanted()
        source = open_source(clip, reading=reading)
        refuse_inputs(self.output, folders_of(source.files))
        if "folder" in wanted.kinds.values():
            refuse_one_name(selection.chosen(source.files), wanted.suffix)
        rate = self.fps or (source.rate or STILL_RATE) / self.stride
        for path in self.output:
            check_rate(path, rate)
        covered = self._covered(source, selection)
        sound, notes = None, assumed(source.files, reading)
        if wanted.coding is not None:
            same_time = isclose(rate * self.stride, source.rate or 0, rel_tol=1e-3)
            containers = (CONTAINERS.get(path.suffix.lower()) for path in wanted.paths)
            container = next(filter(None, containers), None)
            sound, said = find_sound(Path(clip), selection.start, container, same_time=same_time)
            notes |= said
        wanted = replace(wanted, look=source.look, sound=sound)
        estimator = self.load()
        if source.scenes and not self.quiet:
            typer.echo("KITTI's pairs: flow is estimated from each _10 to its _11 only", err=True)
        summary = self.process(
            source,
            selection,
            FlowSequence(estimator, backward=wanted.needs_backward),
            partial(wanted.writers, rate=rate, covered=covered),
            [*self.output, *([self.stats] if self.stats else [])],
        )
        notes |= {**lost_of(source.look, wanted.coding), **self._statistics()}
        self.report(summary | options.compute_summary(estimator) | notes)

    def _check_view(self) -> None:
        """Refuse options that --view has no use for, or that need it."""
        if not self.view and not self.output:
            raise InputError("nothing to do: give -o to write the flow, or --view to watch it")
        written: dict[str, Any] = {
            "-o": self.output,
            "--stats": self.stats,
            "--format": self.format,
        }
        written |= {"--backward": self.backward, "--occlusion": self.occlusion}
        given = [name for name, value in written.items() if value]
        if self.view and given:
            raise InputError(
                f"--view shows flow and drops frames, {given[0]} writes all; give one of them"
            )

    def _show(self) -> dict[str, Any]:
        """Serve the pictures until the clip ends or a signal comes; return the summary."""
        from dataclasses import asdict

        from ..estimation.estimator import FlowSequence
        from ..video import LivePictures, open_source, paced
        from ..video.writers import parse_panels
        from ..web.view import View, serving_view

        panels, end = parse_panels(self.show or "frame,wheel"), Event()
        selection = self.select(self.stride, self.scale, "skip")
        source = open_source(self.inputs[0], reading=self.reading)
        shown = source if source.live else paced(source, end, self.fps)
        sequence = FlowSequence(self.load(), backward="occlusion" in panels)
        with StopSignal() as signal:
            frames, stopped = selection.frames(shown), lambda: signal.received is not None
            pictures = LivePictures(frames, sequence, panels, self.max, stopped)
            view = View(lambda: asdict(pictures.state))
            with serving_view(view, self.port) as address:
                if not self.quiet:
                    typer.echo(f"{address} shows the flow, until Ctrl-C", err=True)
                try:
                    state = pictures.show(view.put)
                finally:
                    end.set()
        numbers = {name: v for name, v in asdict(state).items() if name != "ended"}
        return {"written": [], "address": address, **numbers}

    def _statistics(self) -> dict[str, str]:
        """Return what to print of the statistics; nothing if they are of whole frames."""
        words = [] if self.region is None else [f"of the region {self.region}"]
        words += [] if self.mask is None else [f"of the pixels of {self.mask}"]
        words += [f"in px of frames scaled by {self.scale:g}"] * (self.scale != 1)
        return {"statistics": ", ".join(words)} if self.stats and words else {}

    def _covered(self, source: "Source", selection: "Selection") -> "Covered":
        """Return what the statistics cover; refuse a region that is not in the frames."""
        import numpy as np

        from ..video import Covered, first_size, parse_region, read_mask

        rate = self.fps if source.files else None
        if self.region is None and self.mask is None:
            return Covered(rate=rate)
        if self.region is not None and self.mask is not None:
            raise InputError("both --region and --mask select pixels for the statistics: give one")
        if self.stats is None:
            raise InputError("--region and --mask are for the statistics: give --stats CSV too")
        size = first_size(source)
        if self.region is not None:
            region = parse_region(self.region, size)
        else:
            assert self.mask is not None
            region = read_mask(self.mask, size)
        region = selection.resized(region.astype(np.uint8) * 255) > 127
        if not region.any():
            raise InputError(f"--scale {self.scale:g} leaves no pixel of the region")
        return Covered(region, rate)

    def _wanted(self) -> "Outputs":
        """Return what to write; refuse what cannot be written."""
        from ..video import Outputs

        names = ("stats", "show", "key", "format", "backward", "occlusion", "max", "encoder")
        wanted = Outputs(tuple(self.output), **self.chosen(*names))
        check_outputs(
            [self.stats, *(path for path, kind in wanted.kinds.items() if kind != "folder")],
            folders=[path for path, kind in wanted.kinds.items() if kind == "folder"],
            inputs=[Path(self.inputs[0]), self.mask, self.weights],
        )
        return wanted


class Interpolate(ClipSettings):
    """Make the frames between two frames, or slow motion of a whole clip.

    The flow in both directions shows where things are in between. A clip is a video, a folder or
    a 'glob' of frames. Across a cut nothing is blended: the frame before it is held. 16-bit
    images stay 16-bit, .exr keeps values above 1, and alpha is kept. The same command resumes a
    clip that was stopped.

    Examples:
      dicl-flow interpolate frame1.png frame2.png -o middle.png
      dicl-flow interpolate frame1.png frame2.png -o slow.png -n 3
      dicl-flow interpolate clip.mp4 -o slow.mp4 --factor 4
    """

    inputs: list[str] = Argument(
        ..., metavar="INPUT", help="Two frames of one size (one may be -), or one clip."
    )
    output: Path = options.output(
        "Picture to write; with -n, NAME_1 … NAME_N. Of a clip: video "
        "(.mp4 .mov .mkv .webm .gif) or folder."
    )
    time: float | None = optional("0: frame 1, 1: frame 2; default 0.5.", min=0, max=1)
    count: int | None = optional("How many frames, evenly spaced.", "--count", "-n", min=1)
    alpha: options.Alpha = None
    factor: int | None = optional("Of a clip: how many times slower.", min=2, max=64)
    on_error: str | None = optional("At a broken frame of a clip: stop (default), or skip.")

    def __call__(self) -> None:
        if len(self.inputs) > 2:
            raise quote_pattern(self.inputs, "two frames or one clip are taken")
        if len(self.inputs) == 1:
            if self.factor is None or self.time is not None or self.count is not None:
                raise InputError(
                    "one input is a clip, which takes --factor N (N times slower), not --time or "
                    "-n; give a second frame for the frames between two"
                )
            self.report(self._slow_motion(self.factor))
            return
        clip = self.chosen("factor", "fps", "encoder", "start", "end", "on_error", "restart")
        for name, value in clip.items():
            if value not in (None, False):
                raise InputError(
                    f"--{name.replace('_', '-')} is for a clip, and these are two frames; give a "
                    "folder or a quoted pattern, as 'frames/*.png'"
                )
        self.report(self._between())

    def _between(self) -> dict[str, Any]:
        """Write the frames between two; return the summary."""
        from ..files import encode_plate, write_files

        times, paths, reading = self._times(), [*map(Path, self.inputs)], self.reading
        check_outputs(plates=list(times), inputs=[*paths, self.weights])
        frame1, frame2 = read_plates(*paths, reading=reading)
        refuse_unlike(paths, (frame1, frame2))
        check_weights(self.weights)

        from ..estimation.warping import interpolate

        with nothing_written():
            estimator = self.load()
            with self.estimating() as progress:
                result = estimator(frame1.seen, frame2.seen, backward=True, progress=progress)
            assert result.backward is not None
            known = frame1.values, frame2.values, result.flow, result.backward.flow
            made = {path: frame1.with_values(interpolate(*known, at)) for path, at in times.items()}
            contents = {path: encode_plate(path, plate) for path, plate in made.items()}
        write_files(contents)
        return {
            "written": list(times),
            "times": ", ".join(f"{time:.3g}" for time in times.values()),
            "size": Size(*frame1.pixels.shape[:2]),
            **assumed(paths, reading),
            **describe_kept(frame1, self.output),
        }

    def _times(self) -> dict[Path, float]:
        """Return each file to write, and its time."""
        if self.time is not None and self.count is not None:
            raise InputError("give --time or -n, not both")
        if self.count is None:
            return {self.output: 0.5 if self.time is None else self.time}
        stem, suffix, numbers = self.output.stem, self.output.suffix, range(1, self.count + 1)
        return {self.output.with_name(f"{stem}_{n}{suffix}"): n / (self.count + 1) for n in numbers}

    def _slow_motion(self, factor: int) -> dict[str, Any]:
        """Write a clip `factor` times slower; return the summary."""
        clip, output = self.check_clip(), self.output

        from .. import video
        from ..estimation.estimator import FlowSequence

        selection = self.select(1, 1.0, self.on_error or "stop")
        self.check_output(output)
        how = self.chosen("fps", "encoder", "reading")
        film = video.plan_film(clip, output, slower=factor, start=selection.start, **how)
        source, rate, coding, sound, notes = film
        refuse_inputs([output], folders_of(source.files))

        def writers(parts: Path) -> "list[Writer]":
            if coding is None:
                return [video.SlowMotionFrames(output, factor, video.still_suffix(source))]
            return [video.SlowMotion(output, parts, rate, factor, coding, sound)]

        sequence = FlowSequence(self.load(), backward=True)
        summary = self.process(source, selection, sequence, writers, [output])
        kept = describe_clip(source, output, self.reading, coding)
        return summary | assumed(source.files, self.reading) | kept | notes


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
