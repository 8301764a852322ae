"""Progress: a bar where someone watches, else a line every half minute."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..video import FrameFlow


class Watch:
    """Moves the bar, tells of broken frames, and remembers what there is to report."""

    def __init__(self, advance: Callable[[], None], tell: Callable[[str], None]) -> None:
        self._advance, self._tell = advance, tell
        self._start, self._count, self._skipped = perf_counter(), 0, 0
        self.frame_size: tuple[int, int] | None = None
        """(height, width) of the frames, once there was a flow."""

    def __call__(self, flow: "FrameFlow") -> bool:
        """Take note of a flow; true: go on."""
        self._count += 1
        self._skipped += bool(flow.problem)
        for frame in (flow.following, flow.frame)[: 2 if self._count == 1 else 1]:
            if frame.problem:
                self._tell(f"skipped frame {frame.number} ({frame.name}): {frame.problem}")
        if not flow.problem:
            height, width = flow.images[0].shape[:2]
            self.frame_size = (height, width)
        self._advance()
        return True

    def summary(self) -> dict[str, Any]:
        """What there is to say at the end."""
        seconds = perf_counter() - self._start
        height, width = self.frame_size or (0, 0)
        return {
            "size": f"{width}x{height}" if self.frame_size else "",
            "flows": self._count,
            "without_flow": self._skipped,
            "seconds": seconds,
            "frames_per_second": self._count / seconds,
        }


@contextmanager
def watched(total: int | None, done: int, *, quiet: bool) -> Iterator[Watch]:
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
    visible = console.is_terminal and not quiet
    speed = TextColumn("{task.fields[speed]}")
    columns = ("flow", BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not visible) as progress:
        flows = None if total is None else max(total - 1, 0)
        task = progress.add_task("", total=flows, completed=done, speed="")

        def advance() -> None:
            progress.advance(task)
            speed = progress.tasks[0].speed
            progress.update(task, speed=f"{speed:.1f} frames/s" if speed else "")

        yield Watch(advance, lambda text: progress.console.print(text, highlight=False))


@contextmanager
def now_and_then(tell: Callable[[], None], *, wanted: bool) -> Iterator[None]:
    """Call `tell` every half minute, from a thread of its own: a frame may take minutes."""
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
