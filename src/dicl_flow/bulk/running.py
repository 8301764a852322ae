"""A bulk run: what is missing is computed by an engine, noted in the journal and summed up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..errors import InputError
from .claims import sweep
from .job import Job, keep_settings
from .records import Journal
from .segments import MARKERS, Marker, Plan, finished, marker_name, read_marker
from .storage import read_json
from .summary import SUMMARY, Summary, write_summary

if TYPE_CHECKING:
    from .writing import Outcome

Watch = Callable[[int], None]
Engine = Callable[[Job, Plan, Sequence[int], Watch], "Iterator[Outcome]"]
"""Computes segments by their numbers; calls the last argument when flows are written."""


class Watcher(Protocol):
    """Whoever shows the progress of a run."""

    def begin(self, plan: Plan, done: dict[str, Marker], left: Sequence[int]) -> None:
        """Note what earlier runs have done, and what is left."""

    def flows(self, number: int) -> None:
        """Note that flows were written."""

    def segment(self, segment: int, marker: Marker) -> None:
        """Note that a segment is finished."""


@dataclass
class BulkRun:
    """A run over a shard of a plan, and after `run` what came out of it."""

    job: Job
    plan: Plan
    shard: tuple[int, int] = (1, 1)
    """The place of this run among several, counted from 1, and their number."""
    max_errors: int | None = None
    """Stop when more flows than this have failed."""
    retry: bool = False
    """Compute segments with failed flows again."""
    markers: dict[str, Marker] = field(default_factory=dict)
    """Of the finished segments."""
    failed: int = 0
    """How many flows could not be estimated, in earlier runs and this one."""

    def __post_init__(self) -> None:
        """Check the shard."""
        place, total = self.shard
        if not 1 <= place <= total:
            raise InputError(f"`shard` is I/N, with I from 1 to N, got {place}/{total}")

    def run(self, engine: Engine, device: str, watcher: Watcher) -> Summary:
        """Compute what is missing; return the summary of the whole output."""
        keep_settings(self.job, self.plan.manifest.sha256(), len(self.plan))
        left = self._left()
        watcher.begin(self.plan, self.markers, left)
        journal = Journal(self.job.storage(), device)
        journal.note("start", segments=len(left), shard=list(self.shard))
        try:
            self._check_errors()
            for outcome in engine(self.job, self.plan, left, watcher.flows) if left else ():
                self._note(outcome, journal, watcher)
                self._check_errors()
        finally:
            journal.note("end", segments=len(self.markers), failed=self.failed)
            journal.flush()
        sweep(self.job.storage())
        return self._summary(new=bool(left))

    def _left(self) -> list[int]:
        """Find what is missing; what is damaged or to be tried again loses its marker first."""
        storage = self.job.storage()
        listed = storage.sizes(MARKERS)  # before the next line: others may finish some meanwhile
        right = finished(storage)
        place, total = self.shard
        left = []
        for number, name in enumerate(self.plan.names):
            marker = right.get(name)
            mine = number % total == place - 1
            if marker is not None and not (mine and self.retry and marker["failed"]):
                self._add(name, marker)
            elif mine:
                if marker_name(name) in listed:
                    storage.remove(marker_name(name))
                left.append(number)
        return left

    def _add(self, segment: str, marker: Marker) -> None:
        self.markers[segment] = marker
        self.failed += marker["failed"]

    def _note(self, outcome: "Outcome", journal: Journal, watcher: Watcher) -> None:
        marker = outcome.marker or read_marker(self.job.storage(), outcome.segment)
        assert marker is not None  # an engine yields what is finished
        self._add(outcome.segment, marker)
        watcher.segment(int(outcome.segment.partition("-")[0]), marker)
        if outcome.marker is not None:
            about = {name: marker[name] for name in ("segment", "flows", "failed")}
            seconds = round(outcome.seconds, 3)
            slowest = [outcome.slowest[0], round(outcome.slowest[1], 3)]
            journal.note("segment", **about, seconds=seconds, slowest=slowest)

    def _check_errors(self) -> None:
        if self.max_errors is not None and self.failed > self.max_errors:
            first = next(m["failures"][0] for m in self.markers.values() if m["failures"])
            raise InputError(
                f"{self.failed} flows have failed, more than `max_errors={self.max_errors}`; the "
                f"first: {first[0]}: {first[1]}; `retry=True` computes them again"
            )

    def _summary(self, *, new: bool) -> Summary:
        storage = self.job.storage()
        if self.shard[1] > 1:  # others may have finished some
            names = {*self.plan.names}
            self.markers = {k: v for k, v in finished(storage).items() if k in names}
        if new or SUMMARY not in storage.names():
            return write_summary(self.job, self.plan, self.markers.values())
        return dict(read_json(storage, SUMMARY))
