"""Progress of a video: a bar in a terminal, elsewhere a line every half minute."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from .options import Size

if TYPE_CHECKING:
    from ..estimation.sequence import FlowSequence
    from ..video import Checkpoint, FrameFlow, Selection, Source, Writer


class Watch:
    """Reports broken frames and progress, and keeps the numbers for the summary."""

    def __init__(
        self,
        done: int,
        total: int | None,
        tell: Callable[[str], None],
        show: Callable[["Watch"], None],
    ) -> None:
        self.before, self.done, self.total = done, done, total
        self._tell, self._show = tell, show
        self._start = perf_counter()
        self.frame_size: tuple[int, int] | None = None
        """(height, width) of the frames, known after the first flow."""

    def __call__(self, flow: "FrameFlow") -> bool:
        """Note a flow; True: continue."""
        first = self.done == self.before or flow.frame.scene
        for frame in (flow.following, flow.frame)[: 2 if first else 1]:
            if frame.problem:
                self._tell(f"skipped frame {frame.number} ({frame.name}): {frame.problem}")
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
def watched(done: int, total: int | None, *, quiet: bool) -> Iterator[Watch]:
    """Show a bar with frames/s and the time left, or a line every half minute."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    visible = console.is_terminal and not quiet
    speed = TextColumn("{task.fields[speed]}")
    columns = ("flow", BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True)
    with progress if visible else nullcontext():
        task = progress.add_task("", total=total, completed=done, speed="")

        def show(watch: Watch) -> None:
            speed = f"{watch.speed:.1f} frames/s"
            progress.update(task, completed=watch.done, total=watch.total, speed=speed)

        watch = Watch(done, total, console.print, show)
        with now_and_then(lambda: console.print(watch.line()), wanted=not (visible or quiet)):
            yield watch


@contextmanager
def now_and_then(tell: Callable[[], None], *, wanted: bool) -> Iterator[None]:
    """Call `tell` every half minute, from another thread: a frame may take minutes."""
    from ..training import journal

    ended = Event()

    def work() -> None:
        while not ended.wait(journal.EVERY):
            tell()

    if wanted:
        Thread(target=work, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def run_watched(
    source: "Source",
    selection: "Selection",
    sequence: "FlowSequence",
    writers: "Callable[[Path], Sequence[Writer]]",
    checkpoint: "Checkpoint",
    *,
    min_confidence: float | None = None,
    cuts: str = "estimate",
    quiet: bool = False,
) -> dict[str, Any]:
    """Process a video and return the summary; a signal stops it with exit code 130.

    `writers` makes the writers, given a folder for unfinished parts.
    """
    from ..estimation.estimator import computed
    from ..training.stopping import StopSignal
    from ..video import run

    total = selection.expected_flows(source)
    watching = watched(checkpoint.done, total, quiet=quiet)
    with checkpoint, StopSignal() as signal, watching as watch:
        written = run(
            *(source, selection, sequence, writers(checkpoint.folder), checkpoint),
            watch=lambda flow: watch(flow) and not signal.received,
            min_confidence=min_confidence,
            cuts=cuts,
            on_progress=watch.progress,
        )
    if not written:
        typer.echo(
            f"stopped; {checkpoint.done} flows are done; the same command resumes it", err=True
        )
        raise typer.Exit(130)
    size = watch.frame_size
    fed = computed(sequence.estimator, size) if size else {}
    return {"written": written, **watch.summary(checkpoint.state.missing), **fed}
