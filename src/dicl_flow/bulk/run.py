"""A bulk run: what it will cost, what is missing, its journal, and its summary.

journal.jsonl holds what depends on the run, such as times and machines, and not on the flows.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from math import log10
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Protocol

import numpy as np

from ..errors import InputError
from ..files import Array, encode_image, naming
from ..pictures.figures import contact_sheet, thumbnail, write_on
from .decoding import find_pair
from .job import Job, keep_settings
from .manifest import UNKNOWN_FLOWS, Row, with_flows
from .segments import MARKERS, Marker, Plan, Segment, finished, marker_name, read_marker
from .storage import LocalFolder, Storage, read_json, write_json
from .worker import Worker, run_segment
from .writing import BINS, Outcome, Watch, sweep

_TRIED = 3  # rows, and at most as many pairs of each
_OPENED = 20  # clips, to see how long they are
JOURNAL = "journal.jsonl"
_EVERY = 10.0  # seconds between two writes to a store, which cannot append
SUMMARY, PICTURE = "summary.json", "summary.png"
_SHOWN, _LISTED = 4, 20
_HEIGHT, _BAR = 160, 24  # px of the histogram
_BAR_COLOR, _AXIS_COLOR = (90, 160, 250), (120, 120, 120)
Summary = dict[str, Any]
Engine = Callable[[Job, Plan, Sequence[int], Watch], Iterator[Outcome]]
"""Computes segments by their numbers; calls the last argument when flows are written."""


def forecast(job: Job, plan: Plan, device: str, devices: int) -> dict[str, Any]:
    """Return how many flows, bytes and hours it will be; nothing is written to the output."""
    flows = _expected_flows(job, plan)
    rows = [plan.manifest.rows(number, number + 1)[0] for number in _spread(len(plan.manifest))]
    segment = Segment("trial", 0, tuple(rows), 0)
    with TemporaryDirectory(prefix="dicl-flow-") as folder:
        worker = Worker(replace(job, out=folder), device, most=_TRIED)
        run_segment(worker, segment)  # compiles, and allocates memory
        outcome = run_segment(worker, segment, again=True)
    found: dict[str, Any] = {"segments": len(plan), "clips": len(plan.manifest), "flows": flows}
    marker = outcome.marker
    if marker is None or not marker["flows"]:
        return {**found, "problem": "none of the pairs that were tried can be computed"}
    seconds = outcome.seconds / marker["flows"]
    size = sum(marks["bytes"] for marks in marker["files"].values()) / marker["flows"]
    hours = {"hours": flows * seconds / devices / 3600, "device_hours": flows * seconds / 3600}
    return {**found, "gigabytes": flows * size / 1e9, **hours, "tried": marker["flows"]}


def _spread(total: int, count: int = _TRIED) -> list[int]:
    return sorted({place * (total - 1) // max(count - 1, 1) for place in range(count)})


def _expected_flows(job: Job, plan: Plan) -> int:
    """The plan's count; clips of unknown length are taken for as long as some that are opened."""
    counts = plan.manifest.counts
    guessed = [n for n in (counts == UNKNOWN_FLOWS).nonzero()[0].tolist() if _is_guessed(plan, n)]
    lengths = []
    for place in _spread(len(guessed), _OPENED) if guessed else ():
        row = plan.manifest.rows(guessed[place], guessed[place] + 1)[0]
        counted = with_flows(row, job.place(row.path))
        if counted.flows:
            lengths.append(counted.expected())
    mean = sum(lengths) / len(lengths) if lengths else UNKNOWN_FLOWS
    return int(counts.sum()) + round((mean - UNKNOWN_FLOWS) * len(guessed))


def _is_guessed(plan: Plan, number: int) -> bool:
    row: Row = plan.manifest.rows(number, number + 1)[0]
    return bool(row.path and not row.flows and not row.end)


class Journal:
    """Appends a line for each event; runs on other machines append to the same file.

    A store gets one journal for each run: journal-RUN.jsonl.
    """

    def __init__(self, storage: Storage, device: str) -> None:
        self._storage, self._device = storage, device
        self._run = f"{node()}-{os.getpid()}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        self._lines: list[str] = []
        self._written = 0.0

    def note(self, event: str, **about: Any) -> None:
        """Write a line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        about = {"time": now, "run": self._run, "device": self._device, "event": event, **about}
        line = json.dumps(about) + "\n"
        if isinstance(self._storage, LocalFolder):
            path = self._storage.root / JOURNAL
            with naming(path), path.open("a") as file:
                file.write(line)
            return
        self._lines.append(line)
        if monotonic() - self._written > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the lines that a store has not got yet."""
        if self._lines:
            name = JOURNAL.replace(".", f"-{self._run}.")
            self._storage.write(name, "".join(self._lines).encode())
            self._written = monotonic()


def read_journals(storage: Storage) -> list[Mapping[str, Any]]:
    """Read the lines of all journals; one that was cut off by a kill is left out."""
    names = [name for name in storage.names() if name.startswith("journal")]
    lines = [line for name in names for line in storage.read(name).decode().splitlines()]
    return [entry for line in lines if (entry := _entry(line))]


def _entry(line: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


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
            raise InputError(f"`shard` must be I/N, with I from 1 to N, got {place}/{total}")

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

    def _note(self, outcome: Outcome, journal: Journal, watcher: Watcher) -> None:
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


def summarize(markers: Iterable[Marker], journal: Iterable[Mapping[str, Any]]) -> Summary:
    """Add up the markers of segments; the slowest clips and the hours are those of the journal."""
    listed = list(markers)
    histogram: Counter[int] = Counter()
    for marker in listed:
        histogram.update({int(place): count for place, count in marker["histogram"].items()})
    entries = [entry for entry in journal if entry["event"] == "segment"]
    seconds: Counter[str] = Counter()
    for entry in entries:
        seconds[entry["device"].partition(":")[0]] += entry["seconds"]
    names = ("clips", "flows", "failed", "cuts")
    return {
        "segments": len(listed),
        **{name: sum(marker[name] for marker in listed) for name in names},
        "bytes": sum(marks["bytes"] for m in listed for marks in m["files"].values()),
        "device_hours": {kind: total / 3600 for kind, total in seconds.items()},
        "histogram_edges_px": [float(f"{edge:.4g}") for edge in BINS],
        "histogram": [histogram[place] for place in range(len(BINS) - 1)],
        "calmest": nsmallest(_SHOWN, (flow for m in listed for flow in m["calmest"])),
        "fastest": nlargest(_SHOWN, (flow for m in listed for flow in m["fastest"])),
        "slowest": _slowest(entries),
        "failures": [failure for m in listed for failure in m["failures"]][:_LISTED],
    }


def _slowest(entries: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    clips: dict[str, float] = dict(entry["slowest"] for entry in entries)
    return [[clip, clips[clip]] for clip in nlargest(_SHOWN, clips, key=clips.__getitem__)]


def write_summary(job: Job, plan: Plan, markers: Iterable[Marker]) -> Summary:
    """Write summary.json and summary.png to the output."""
    storage = job.storage()
    summary = summarize(markers, read_journals(storage))
    summary["segments_planned"] = len(plan)
    write_json(storage, SUMMARY, summary)
    storage.write(PICTURE, encode_image(PICTURE, draw_summary(summary, job, plan)))
    return summary


def draw_summary(summary: Summary, job: Job, plan: Plan) -> Array:
    """Return a picture: histogram of motion, slowest and failed clips, extreme pairs."""
    rows, labels = [], []
    for name in ("calmest", "fastest"):
        rows.append([_picture(flow, job, plan) for flow in summary[name]])
        labels.append(f"{name} pairs: mean length in px, and both frames on top of each other")
    sheet = contact_sheet(rows, labels, [""] * _SHOWN)
    lines = [
        f"{summary['flows']:,} flows of {summary['clips']:,} clips, {summary['failed']:,} failed, "
        f"{summary['cuts']:,} cuts",
        *(f"slowest: {clip}, {seconds:.1f} s" for clip, seconds in summary["slowest"]),
        *(f"failed: {clip}: {status}" for clip, status in summary["failures"][:6]),
    ]
    text = np.concatenate([_line(line, sheet.shape[1]) for line in lines])
    return np.concatenate([text, _bars(summary["histogram"], sheet.shape[1]), sheet])


def _line(text: str, width: int) -> Array:
    return write_on(np.full((20, width, 3), 24, np.uint8), text)


def _bars(counts: list[int], width: int) -> Array:
    picture = np.full((_HEIGHT, width, 3), 24, np.uint8)
    for place, count in enumerate(counts):
        height = round(count / max(*counts, 1) * (_HEIGHT - _BAR))
        left = 4 + place * _BAR
        picture[_HEIGHT - height :, left : left + _BAR - 3] = _BAR_COLOR
    picture[-1] = _AXIS_COLOR
    return np.concatenate([_line("flows by mean length, px", width), picture, _axis(width)])


def _axis(width: int) -> Array:
    """The lengths 0.01, 0.1, 1 and so on, below the left edges of their bars."""
    strip = _line("", width)
    for place, edge in enumerate(BINS):
        left = place * _BAR
        if round(log10(edge), 6).is_integer() and left < width:
            strip[:, left:] = write_on(strip[:, left:], f"{edge:g}")
    return strip


def _picture(flow: list[Any], job: Job, plan: Plan) -> Array:
    """Both frames of a flow, if they can still be read."""
    length, key, clip = flow
    picture, label = np.full((240, 320, 3), 60, np.uint8), f"{length:.3g} px, {Path(clip).name}"
    row = int(key.partition("_")[0])
    pair = find_pair(job, plan.manifest.rows(row, row + 1)[0], key)
    if pair is not None and pair.images is not None:
        picture = thumbnail(pair.images[0] // 2 + pair.images[1] // 2)
        label += f" {pair.frame1}" if pair.number else ""
    return write_on(picture, label)
