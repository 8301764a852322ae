"""The command `track`: where the points of a clip go."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError, StopSignal
from . import options
from .clips import ClipSettings
from .inputs_outputs import assumed, check_outputs, folders_of, refuse_inputs
from .options import Size, flag, in_time, make_bar, optional, showing

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator
    from ..tracking.run import TrackOutputs
    from ..tracking.task import Clip, Task
    from ..tracking.tracker import Tracker
    from ..tracking.tracks import Reference
    from ..video import Selection, Source


class Track(ClipSettings):
    """Track points of CLIP, a grid of them, or every pixel, through occlusion.

    Each point has in each frame a position, whether it is visible, and the expected error.
    Points are followed forward in time, then backward. A cut ends tracks. The same command resumes
    a run that was stopped, by Ctrl-C or a kill.

    Examples:
      dicl-flow track clip.mp4 --points points.csv -o tracks.npz --video overlay.mp4
      dicl-flow track clip.mp4 --grid 32 --reference 0,120 -o tracks.csv
      dicl-flow track clip.mp4 --dense --reference 0 -o st-maps --format st.exr
    """

    inputs: list[str] = Argument(
        ..., metavar="CLIP", help="Video, folder or 'glob' of frames; one frame is not enough."
    )
    output: list[Path] = options.output(
        "Tracks (.npz .csv); repeat for both. With --dense, a folder of ST maps."
    )
    points: Path | None = optional("Points with the columns frame,x,y, in px.", metavar="CSV")
    grid: int | None = optional("Points in rows, this many px apart.", metavar="PX")
    dense: bool = flag("--dense", "Every pixel, as ST maps.")
    reference: str | None = optional(
        "Frames from which a grid or every pixel is tracked: 0,120; default: the first.",
        metavar="FRAMES",
    )
    video: Path | None = optional(
        "Video with the tracks drawn on it (.mp4 .mov .mkv .webm .gif): visible points filled, "
        "hidden ones hollow."
    )
    format: str | None = optional("Files in a folder of --dense: st.exr (default).")
    forward_only: bool = flag(
        "--forward-only", "Do not track back in time, to frames before a reference."
    )
    intervals: str = Option(
        "1,2,4,8,16,32",
        help="How many frames flows span, besides the flow from the reference; fewer are faster.",
        metavar="FRAMES",
    )
    stride: int = Option(1, help="Use every N-th frame.")
    scale: float = Option(1.0, max=8, help="Compute with frames scaled by this.")
    on_error: str = Option("stop", help="At a broken or lost frame: stop, or skip it.")
    full_size: options.FullSize = False
    dry_run: bool = flag("--dry-run", "Only print what would be done, and the memory it takes.")

    def __call__(self) -> None:
        clip = self.check_clip()
        intervals = self._check_words()
        self._check_outputs()

        from ..tracking.intervals import check_intervals
        from ..video import open_source

        intervals = [*check_intervals(intervals, direct=True)]
        reading = self.reading
        selection = self.select(self.stride, self.scale, self.on_error)
        source = open_source(clip, reading=reading)
        refuse_inputs(self.output, folders_of(source.files))
        outputs, task = self._outputs(source), self._task(source, selection)
        estimator = self.load()
        known = {**self._about(task, intervals), **options.compute_summary(estimator)}
        known |= assumed(source.files, reading)
        if self.dry_run:
            self.report(known | expected_bytes(task, estimator, intervals))
            return
        self.report(self._run(task, estimator, intervals, outputs) | known)

    def _check_words(self) -> list[int]:
        """Refuse options that do not fit together; return the intervals."""
        given = [name for name in ("points", "grid", "dense") if getattr(self, name)]
        if len(given) != 1:
            got = f"got {' and '.join(f'--{name}' for name in given)}" if given else "got none"
            raise InputError(f"give one of --points, --grid and --dense, {got}")
        if self.points is not None:
            from ..files import check_file

            check_file(self.points)
            if self.reference is not None:
                raise InputError("--reference is for --grid and --dense; points have frames")
        if self.format is not None and not self.dense:
            raise InputError("--format is for --dense; tracks have the format of their ending")
        if self.video is None and (self.fps is not None or self.encoder is not None):
            raise InputError("--fps and --encoder are for --video, which is not given")
        return parse_numbers("--intervals", self.intervals)

    def _check_outputs(self) -> None:
        """Refuse outputs that cannot be written."""
        from ..tracking.outputs import check_map_format
        from ..tracking.tracks import check_tracks_name
        from ..video import output_kind

        if self.dense:
            check_map_format(self.format or "st.exr")
            if len(self.output) > 1 or output_is_file(self.output[0]):
                raise InputError(
                    f"{self.output[-1]}: --dense writes one folder of ST maps; --grid 8 writes "
                    ".npz and .csv"
                )
        for path in () if self.dense else self.output:
            check_tracks_name(path)
        if self.video is not None and output_kind(self.video) != "video":
            raise InputError(f"{self.video}: --video must end in .mp4, .mov, .mkv, .webm or .gif")
        files, folders = ([], self.output) if self.dense else (self.output, [])
        inputs = [Path(self.inputs[0]), self.points, self.weights]
        check_outputs([*files, self.video], folders=folders, inputs=inputs)

    def _outputs(self, source: "Source") -> "TrackOutputs":
        """Return what to write; refuse an encoder or a rate that cannot be used."""
        from ..tracking.outputs import OverlayVideo
        from ..tracking.run import TrackOutputs
        from ..video import STILL_RATE, check_rate, find_coding

        make: Callable[[Path], OverlayVideo] | None = None
        if self.video is not None:
            path, rate = self.video, self.fps or (source.rate or STILL_RATE) / self.stride
            check_rate(path, rate)
            coding = find_coding(path, self.encoder, source.look)

            def make(parts: Path) -> OverlayVideo:
                return OverlayVideo(path, parts, rate, coding)

        if self.dense:
            return TrackOutputs(maps=self.output[0], video=make)
        return TrackOutputs(files=self.output, video=make)

    def _task(self, source: "Source", selection: "Selection") -> "Task":
        """Return what to track; refuse points and references that are not in the clip."""
        from ..tracking.task import dense_task, grid_queries, look_at, point_task
        from ..tracking.tracks import read_points

        queries = None if self.points is None else read_points(self.points)
        numbers = self.reference and sorted({*parse_numbers("--reference", self.reference)})
        clip = look_at(source, selection)
        numbers = numbers or [clip.first]
        backward = not self.forward_only
        if self.dense:
            drawn = self.video is not None
            return dense_task(clip, numbers, backward=backward, drawn=drawn)
        if queries is None:
            assert self.grid is not None
            queries = grid_queries(clip, self.grid, numbers)
            return point_task(clip, queries, backward=backward, what="a reference")
        return point_task(clip, queries, backward=backward)

    def _about(self, task: "Task", intervals: Sequence[int]) -> dict[str, Any]:
        """Return what is tracked, for the summary."""
        points = [len(reference.points) for reference in task.references]
        return {
            "size": Size(*task.clip.size),
            "frames": task.clip.count,
            "references": ", ".join(map(str, task.numbers[:8])) + " …" * (len(points) > 8),
            "points": sum(points),
            "flows_per_frame": flows_per_frame(task, intervals),
        }

    def _run(
        self,
        task: "Task",
        estimator: "FlowEstimator",
        intervals: Sequence[int],
        outputs: "TrackOutputs",
    ) -> dict[str, Any]:
        """Track and write; return the summary."""
        from ..estimation.estimator import FlowSequence
        from ..tracking.run import run
        from ..tracking.tracker import Tracker
        from ..video import Checkpoint

        clip = task.clip
        paths = [*self.output, *([self.video] if self.video else [])]
        frames = clip.selection.chosen(clip.source.files)
        checkpoint = Checkpoint(
            paths[0],
            self._recorded(clip, estimator, paths),
            frames=frames,
            used=lambda flows: len(frames),
            restart=self.restart,
            remember=True,
        )
        if checkpoint.finished:
            return self.already_finished(checkpoint, paths, lost_frames=checkpoint.state.lost)
        sequence = FlowSequence(estimator, backward=True)

        def make_tracker(references: "Sequence[Reference]") -> "Tracker":
            return Tracker(estimator, references, intervals=intervals, sequence=sequence)

        shown = show_progress(checkpoint.done, quiet=self.quiet)
        with checkpoint, StopSignal() as signal, shown as progress:
            watch = lambda: not signal.received  # noqa: E731
            written, summary = run(task, make_tracker, outputs, checkpoint, watch, progress)
        if not written:
            typer.echo("stopped; the same command resumes it", err=True)
            raise typer.Exit(130)
        lost = {"lost_frames": checkpoint.state.lost}
        return {"written": written, **summary, **lost, **progress.summary()}

    def _recorded(
        self, clip: "Clip", estimator: "FlowEstimator", paths: Sequence[Path]
    ) -> dict[str, Any]:
        """Return what must be the same to resume a run."""
        from ..video import stamp

        recorded = self.record(clip.source, estimator, paths)
        recorded["points"] = None if self.points is None else stamp(self.points)
        return recorded


def output_is_file(path: Path) -> bool:
    """Whether an output is meant as a file, by its name."""
    return bool(path.suffix) and not path.is_dir()


def parse_numbers(option: str, text: str) -> list[int]:
    """Read "0,120"."""
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text):
        raise InputError(f"{option} must be whole numbers with commas, as 0,120, got {text!r}")
    return [int(word) for word in text.split(",")]


def flows_per_frame(task: "Task", intervals: Sequence[int]) -> int:
    """How many flows lead to a frame at most, both ways: over intervals, from references."""
    return 2 * (len(intervals) + len(task.references))


def expected_bytes(
    task: "Task", estimator: "FlowEstimator", intervals: Sequence[int]
) -> dict[str, Any]:
    """Return the memory of the frames and positions that a tracker keeps, measured on a frame."""
    import numpy as np

    from ..estimation.estimator import FlowSequence

    frame = np.zeros((*task.clip.used, 3), np.uint8)
    prepared = FlowSequence(estimator, backward=True).prepare(frame)
    kept = max(intervals) + len(task.references)
    points = sum(len(reference.points) for reference in task.references)
    size = kept * (prepared.nbytes + points * 15)  # x, y, error, visible, interval
    written = 15 * task.count * (task.clip.count or 0)
    return {"kept_megabytes": (size + written) / 1e6}


class TrackProgress:
    """How far a run is, in frames of both directions; drawing comes after them."""

    def __init__(self, done: int, show: Callable[["TrackProgress"], None]) -> None:
        self.before = self.done = done
        self.total: int | None = None
        self.stage, self._show, self._start = 0, show, perf_counter()
        self._seconds = 0.0  # of tracking
        self.drawn: tuple[int, int | None] = (0, None)

    def __call__(self, stage: int, done: int, total: int | None) -> None:
        """Note how many frames are done, and show it."""
        from ..tracking.progress import DRAWING

        self.stage = stage
        if stage == DRAWING:
            self.drawn = done, total
        else:
            self.done, self.total = done, total
            self._seconds = perf_counter() - self._start
        self._show(self)

    @property
    def speed(self) -> float:
        """Frames per second of tracking in this run."""
        return (self.done - self.before) / self._seconds if self._seconds else 0.0

    def line(self) -> str:
        """The progress so far: "forward: 120 of 899 frames, 13 %, 2.1 frames/s, …"."""
        from ..tracking.progress import DRAWING, STAGES

        if self.stage == DRAWING:
            return f"drawing: {self.drawn[0]} of {self.drawn[1]} frames"
        if not self.total or not self.speed:
            return f"{STAGES[self.stage]}: {self.done} frames, {self.speed:.2g} frames/s"
        left = in_time((self.total - self.done) / self.speed)
        return (
            f"{STAGES[self.stage]}: {self.done} of {self.total} frames, "
            f"{self.done / self.total:.0%}, {self.speed:.2g} frames/s, about {left} left"
        )

    def summary(self) -> dict[str, Any]:
        """Return what to print at the end."""
        return {"seconds": perf_counter() - self._start, "frames_per_second": self.speed}


@contextmanager
def show_progress(done: int, *, quiet: bool) -> Iterator[TrackProgress]:
    """Show a bar with frames/s and the time left, or a line every half minute."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from ..tracking.progress import DRAWING, STAGES

    words, speed = TextColumn("{task.description}"), TextColumn("{task.fields[speed]}")
    bar = make_bar(words, BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    task = bar.add_task(STAGES[0], total=None, completed=done, speed="")

    def show(progress: TrackProgress) -> None:
        if progress.stage == DRAWING:
            completed, total = progress.drawn
            bar.update(task, completed=completed, total=total, speed="", description="drawing")
            return
        speed, word = f"{progress.speed:.1f} frames/s", STAGES[progress.stage]
        done, total = progress.done, progress.total
        bar.update(task, completed=done, total=total, speed=speed, description=word)

    progress = TrackProgress(done, show)
    with showing(bar, progress.line, quiet=quiet):
        yield progress
