"""Progress of a bulk run: a bar in a terminal, elsewhere a line every half minute."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .watching import now_and_then

if TYPE_CHECKING:
    from ..bulk.segments import Plan


class BulkProgress:
    """Counts flows; the plan knows how many are left, as far as a manifest tells."""

    def __init__(self, devices: int, unit: str, show: "Callable[[BulkProgress], None]") -> None:
        self._devices, self._unit, self._show = devices, unit, show
        self._start = perf_counter()
        self.busy: float | None = None  # seconds of devices that come and go
        self._total = self._left = self._open = self.new = 0
        self._counts: dict[int, int] = {}

    def begin(
        self, plan: "Plan", done: Mapping[str, Mapping[str, Any]], left: Sequence[int]
    ) -> None:
        """Note what earlier runs have done, and what is left."""
        self._counts = {number: plan.count(number) for number in left}
        self._left = sum(self._counts.values())
        self._total = self._left + sum(marker["flows"] for marker in done.values())
        self._start = perf_counter()

    def flows(self, number: int) -> None:
        """Note that flows were written."""
        self._open += number
        self.new += number
        self._show(self)

    def segment(self, segment: int, marker: Mapping[str, Any]) -> None:
        """Note that a segment is finished: its flows need not be guessed any more."""
        self._left -= self._counts.pop(segment)
        self._open = max(0, self._open - marker["flows"] - marker["failed"])

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return perf_counter() - self._start

    @property
    def rate(self) -> float:
        """Flows per second in this run."""
        return self.new / max(self.seconds, 1e-9)

    @property
    def hours(self) -> float:
        """Hours of all devices together."""
        return (self.seconds * self._devices if self.busy is None else self.busy) / 3600

    @property
    def left(self) -> int:
        """How many flows are left."""
        return max(0, self._left - self._open)

    @property
    def share(self) -> float:
        """The share of the flows that are done, from 0 to 1."""
        return 1 - self.left / self._total if self._total else 1.0

    def line(self) -> str:
        """The progress so far: "40.0% done, 12.3 flows/s, about 3 min left, 0.02 GPU-hours"."""
        text = f"{self.share:.1%} done, {self.rate:.3g} flows/s"
        if self.new:
            text += f", about {self.left / self.rate / 60:.0f} min left"
        return f"{text}, {self.hours:.2f} {self._unit}-hours"


@contextmanager
def watched_bulk(devices: int, kind: str, *, quiet: bool) -> Iterator[BulkProgress]:
    """Show a bar, or a line every half minute."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    visible = console.is_terminal and not quiet
    columns = ("flows", BarColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=console, transient=True)
    with bar if visible else nullcontext():
        task = bar.add_task("", total=1.0)

        def show(progress: BulkProgress) -> None:
            bar.update(task, completed=progress.share, description=progress.line())

        progress = BulkProgress(devices, "GPU" if kind == "cuda" else kind.upper(), show)
        with now_and_then(lambda: console.print(progress.line()), wanted=not (visible or quiet)):
            yield progress
