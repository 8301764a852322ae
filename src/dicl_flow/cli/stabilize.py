"""The command `stabilize`: a shaky clip becomes a steady one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import StopSignal
from . import options
from .clips import ClipSettings
from .inputs_outputs import assumed, describe_clip
from .options import Size, flag, in_time, make_bar, optional, showing

if TYPE_CHECKING:
    from ..tracking.stabilize import Job

_STAGES = {"follow": "following points", "write": "writing frames"}


class Stabilize(ClipSettings):
    """Make a shaky clip steady.

    Points of the background are followed to find how the camera moves; its path is smoothed, and
    each frame is warped to it. At a cut the path begins anew. A clip is a video, a folder or a
    'glob' of frames. The first pass finds the path, the second writes; a run that is stopped
    after the first resumes there.

    Examples:
      dicl-flow stabilize clip.mp4 -o steady.mp4
      dicl-flow stabilize clip.mp4 -o calm.mp4 --smooth 2 --scale 0.5
      dicl-flow stabilize clip.mp4 -o tripod.mp4 --lock --border fill --path path.csv
      dicl-flow stabilize 'frames/*.png' -o steady
    """

    inputs: list[str] = Argument(..., metavar="CLIP", help="Video, folder or 'glob' of frames.")
    output: Path = options.output("Video (.mp4 .mov .mkv .webm .gif) or folder of images.")
    motion: str = Option(
        "similarity",
        metavar="NAME",
        help="Motion of the camera: shift, similarity (with rotation and zoom), or homography.",
    )
    smooth: float = Option(
        1.0, max=60, help="Seconds over which the path is smoothed; images: at --fps, or 25."
    )
    lock: bool = flag("--lock", "Hold the camera still at the first frame of each scene.")
    border: str = Option(
        "crop",
        metavar="NAME",
        help="Beyond the frame: crop (one rectangle, at least 80 % of a side, scaled up), fill "
        "(from frames before), or black.",
    )
    path: Path | None = optional("Write the camera's motion by frame.", metavar="CSV")
    scale: float = Option(
        1.0, max=1, help="Follow points in frames scaled by this, which is faster."
    )
    on_error: str = Option("stop", help="At a broken or lost frame: stop, or skip it.")
    full_size: options.FullSize = False
    dry_run: bool = flag("--dry-run", "Only print what would be done.")

    def __call__(self) -> None:
        clip = self.check_clip()
        self.check_output(self.output, self.path)

        from ..tracking.stabilize import Steadying, plan

        how = Steadying(**self.chosen("motion", "smooth", "lock", "border", "scale"))
        job = plan(
            *(clip, self.output, how),
            selection=self.select(1, 1.0, self.on_error),
            table=self.path,
            **self.chosen("fps", "encoder", "reading"),
        )
        source, coding = job.film.source, job.film.coding
        notes = assumed(source.files, self.reading)
        notes |= describe_clip(source, self.output, self.reading, coding)
        self.report((self._planned(job) if self.dry_run else self._run(job)) | notes)

    def _planned(self, job: "Job") -> dict[str, Any]:
        """What would be done."""
        from ..video import first_size

        coding = job.film.coding
        return {
            "would_write": job.outputs,
            "frames": job.total,
            "size": Size(*first_size(job.film.source)),
            "rate": job.film.rate,
            "coding": f"{coding.codec}, {coding.bits} bits" if coding else "images",
            **self.chosen("motion", "border"),
            "smoothing": "locked" if self.lock else f"{job.sigma:.4g} frames",
            **job.film.notes,
        }

    def _run(self, job: "Job") -> dict[str, Any]:
        """Do it; a signal stops it with exit code 130."""
        from ..tracking.stabilize import run, trackers
        from ..video import Checkpoint

        estimator = self.load()
        checkpoint = Checkpoint(
            job.output,
            self.record(job.film.source, estimator, job.outputs),
            frames=job.frames,
            restart=self.restart,
            remember=True,
        )
        if checkpoint.finished:
            return self.already_finished(checkpoint, job.outputs, frames=checkpoint.done)
        start = perf_counter()
        with StopSignal() as signal, _show_stages(job.total, quiet=self.quiet) as show:
            done = run(
                *(job, trackers(estimator), checkpoint),
                watch=lambda what, count: show(what, count) and not signal.received,
            )
        if done is None:
            resumes = "the camera's path is saved; the same command writes the frames"
            typer.echo(f"stopped; {resumes if checkpoint.done else 'nothing was saved'}", err=True)
            raise typer.Exit(130)
        return done | {"seconds": perf_counter() - start} | options.compute_summary(estimator)


class _Stages:
    """The progress of both passes."""

    def __init__(self, total: int | None) -> None:
        self.total, self.what, self.done = total, "follow", 0
        self._start = perf_counter()

    def note(self, what: str, done: int) -> None:
        """Note how many frames are done in which pass."""
        if what != self.what:
            self.what, self._start = what, perf_counter()
        self.done = done

    def line(self) -> str:
        """The progress so far: "following points: 120 of 900 frames, about 6 min left"."""
        counted = f"{self.done} of {self.total}" if self.total else str(self.done)
        text = f"{_STAGES[self.what]}: {counted} frames"
        if not self.total or not self.done:
            return text
        left = (perf_counter() - self._start) * (self.total - self.done) / self.done
        return f"{text}, about {in_time(left)} left"


@contextmanager
def _show_stages(total: int | None, *, quiet: bool) -> Iterator[Any]:
    """Show a bar for each pass, or a line every half minute."""
    from rich.progress import BarColumn, TextColumn

    stages, bar = _Stages(total), make_bar(BarColumn(), TextColumn("{task.description}"))
    task = bar.add_task(stages.line(), total=total)

    def show(what: str, done: int) -> bool:
        stages.note(what, done)
        bar.update(task, completed=done, description=stages.line())
        return True

    with showing(bar, stages.line, quiet=quiet):
        yield show
