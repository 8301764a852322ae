"""A bulk run: what it will cost, what is missing, its journal and its summary; then its check."""

import json
import os
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from math import log10
from operator import itemgetter
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Protocol

import numpy as np

from ..errors import InputError, counted
from ..files import Array, encode_image, naming
from ..pictures.figures import contact_sheet, thumbnail, write_on
from .job import Job, Marker, Plan, finished, keep_settings, marked, marker_name, read_marker
from .manifest import UNKNOWN_FLOWS, Row, with_flows
from .storage import LocalFolder, Storage, decode_table, encode_json, read_json
from .worker import Worker, find_pair, run_segment
from .writing import BINS, LENGTHS, OK, SHOWN, TABLES, HashedFile, Outcome, Watch, sweep

_TRIED = 3  # rows, and at most as many pairs of each
_OPENED = 20  # clips, to see how long they are
_JOURNAL = "journal.jsonl"
_EVERY = 10.0  # seconds between two writes to a store, which cannot append
_SUMMARY, _PICTURE = "summary.json", "summary.png"
_LISTED = 20  # failures, and reasons
_HEIGHT, _BAR = 160, 24  # px of the histogram
_COMPARED = (*(f"{name}_length" for name in LENGTHS), "confidence", "sharpness")
_TOLERANCE = 0.01  # relative, and in px: other devices and numbers of threads round differently
Engine = Callable[[Job, Plan, Sequence[int], Watch], Iterator[Outcome]]
"""Computes segments by their numbers; calls the last argument when flows are written."""


def forecast(job: Job, plan: Plan, device: str, devices: int) -> dict[str, Any]:
    """Return how many flows, bytes and hours it will be; nothing is written to the output."""
    flows = _expected_flows(job, plan)
    rows = tuple(plan.manifest[number] for number in _spread(len(plan.manifest)))
    segment = replace(plan[0], name="trial", rows=rows)
    with TemporaryDirectory(prefix="dicl-flow-") as folder:
        worker = Worker(replace(job, out=folder), device, most=_TRIED)
        run_segment(worker, segment)  # compiles, and allocates memory
        outcome = run_segment(worker, segment, again=True)
    counts: dict[str, Any] = {"segments": len(plan), "clips": len(plan.manifest), "flows": flows}
    marker = outcome.marker
    if marker is None or not marker["flows"]:
        return {**counts, "problem": "none of the pairs that were tried can be computed"}
    seconds = outcome.seconds / marker["flows"]
    size = sum(marks["bytes"] for marks in marker["files"].values()) / marker["flows"]
    hours = {"hours": flows * seconds / devices / 3600, "device_hours": flows * seconds / 3600}
    return {**counts, "gigabytes": flows * size / 1e9, **hours, "tried": marker["flows"]}


def _spread(total: int, count: int = _TRIED) -> list[int]:
    return sorted({place * (total - 1) // max(count - 1, 1) for place in range(count)})


def _expected_flows(job: Job, plan: Plan) -> int:
    """The plan's count; clips of unknown length are taken for as long as some that are opened."""
    manifest, counts = plan.manifest, plan.manifest.counts
    likely = (counts == UNKNOWN_FLOWS).nonzero()[0].tolist()
    guessed = [n for n in likely if (row := manifest[n]).path and not row.flows and not row.end]
    lengths = []
    for place in _spread(len(guessed), _OPENED) if guessed else ():
        row = manifest[guessed[place]]
        counted = with_flows(row, job.place(row.path))
        if counted.flows:
            lengths.append(counted.expected())
    mean = sum(lengths) / len(lengths) if lengths else UNKNOWN_FLOWS
    return int(counts.sum()) + round((mean - UNKNOWN_FLOWS) * len(guessed))


class Journal:
    """Appends what depends on the run, such as times, for all runs; a store has one for each."""

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
            path = self._storage.root / _JOURNAL
            with naming(path), path.open("a") as file:
                file.write(line)
            return
        self._lines.append(line)
        if monotonic() - self._written > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the lines that a store has not got yet."""
        if self._lines:
            name = _JOURNAL.replace(".", f"-{self._run}.")
            self._storage.write(name, "".join(self._lines).encode())
            self._written = monotonic()


def _read_journals(storage: Storage) -> list[dict[str, Any]]:
    """Read the lines of all journals; one that was cut off by a kill is left out."""
    names = [name for name in storage.names() if name.startswith("journal")]
    entries = []
    for line in (line for name in names for line in storage.read(name).decode().splitlines()):
        with suppress(ValueError):
            entries.append(dict(json.loads(line)))
    return entries


class _Watcher(Protocol):
    """Shows the progress of a run: what is left, flows that were written, finished segments."""

    def begin(self, plan: Plan, done: dict[str, Marker], left: Sequence[int]) -> None: ...
    def flows(self, number: int) -> None: ...
    def segment(self, segment: int, marker: Marker) -> None: ...


@dataclass
class BulkRun:
    """A run over a shard of a plan, and after `run` what came out of it."""

    job: Job
    plan: Plan
    shard: tuple[int, int] = (1, 1)
    """The place of this run among several, counted from 1, and their number."""
    max_errors: int | None = None  # stop when more flows than this have failed
    retry: bool = False  # compute segments with failed flows again
    markers: dict[str, Marker] = field(default_factory=dict)  # of the finished segments
    failed: int = 0  # how many flows could not be estimated, in earlier runs and this one

    def __post_init__(self) -> None:
        place, total = self.shard
        if not 1 <= place <= total:  # otherwise it would compute nothing
            raise InputError(f"`shard` must be I/N, with I from 1 to N, got {place}/{total}")

    def run(self, engine: Engine, device: str, watcher: _Watcher) -> dict[str, Any]:
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
        listed = {*marked(storage)}  # before the next line: others may finish some meanwhile
        right = finished(storage)
        place, total = self.shard
        left = []
        for number, name in enumerate(self.plan.names):
            marker = right.get(name)
            mine = number % total == place - 1
            if marker is not None and not (mine and self.retry and marker["failed"]):
                self._add(name, marker)
            elif mine:
                if name in listed:
                    storage.remove(marker_name(name))
                left.append(number)
        return left

    def _add(self, segment: str, marker: Marker) -> None:
        self.markers[segment] = marker
        self.failed += marker["failed"]

    def _note(self, outcome: Outcome, journal: Journal, watcher: _Watcher) -> None:
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
            failed = f"failed: {counted(self.failed, 'flow')}"
            raise InputError(
                f"{failed}, more than `max_errors={self.max_errors}`; the first: {first[0]}: "
                f"{first[1]}; `retry=True` computes them again"
            )

    def _summary(self, *, new: bool) -> dict[str, Any]:
        storage = self.job.storage()
        if self.shard[1] > 1:  # others may have finished some
            names = {*self.plan.names}
            self.markers = {k: v for k, v in finished(storage).items() if k in names}
        if not new and _SUMMARY in storage.names():
            return dict(read_json(storage, _SUMMARY))
        summary = _summarize([*self.markers.values()], _read_journals(storage))
        summary["segments_planned"] = len(self.plan)
        storage.write(_SUMMARY, encode_json(summary))
        picture = _draw_summary(summary, self.job, self.plan)
        storage.write(_PICTURE, encode_image(_PICTURE, picture))
        return summary


def _summarize(markers: Sequence[Marker], journal: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the markers of segments; the slowest clips and the hours are those of the journal."""
    histogram: Counter[int] = Counter()
    for marker in markers:
        histogram.update({int(place): count for place, count in marker["histogram"].items()})
    entries = [entry for entry in journal if entry["event"] == "segment"]
    seconds: Counter[str] = Counter()
    for entry in entries:
        seconds[entry["device"].partition(":")[0]] += entry["seconds"]
    clips: dict[str, float] = dict(entry["slowest"] for entry in entries)
    names = ("clips", "flows", "failed", "cuts")
    return {
        "segments": len(markers),
        **{name: sum(marker[name] for marker in markers) for name in names},
        "bytes": sum(marks["bytes"] for m in markers for marks in m["files"].values()),
        "device_hours": {kind: total / 3600 for kind, total in seconds.items()},
        "histogram_edges_px": [float(f"{edge:.4g}") for edge in BINS],
        "histogram": [histogram[place] for place in range(len(BINS) - 1)],
        "calmest": nsmallest(SHOWN, (flow for m in markers for flow in m["calmest"])),
        "fastest": nlargest(SHOWN, (flow for m in markers for flow in m["fastest"])),
        "slowest": [[clip, clips[clip]] for clip in nlargest(SHOWN, clips, key=clips.__getitem__)],
        "failures": [failure for m in markers for failure in m["failures"]][:_LISTED],
        "reasons": _count_reasons(markers),
    }


def _count_reasons(markers: Iterable[Marker]) -> list[list[Any]]:
    """Why flows failed, the most frequent reason first: count, clip and status of an example."""
    total: dict[str, list[Any]] = {}
    for marker in sorted(markers, key=itemgetter("segment")):
        for reason, (count, *example) in marker.get("reasons", {}).items():
            total.setdefault(reason, [0, *example])[0] += count
    return nlargest(_LISTED, total.values(), key=itemgetter(0))


def _draw_summary(summary: dict[str, Any], job: Job, plan: Plan) -> Array:
    """Return a picture: histogram of motion, slowest and failed clips, extreme pairs."""
    rows, labels = [], []
    for name in ("calmest", "fastest"):
        rows.append([_picture(flow, job, plan) for flow in summary[name]])
        labels.append(f"{name} pairs: mean length in px, and both frames on top of each other")
    sheet = contact_sheet(rows, labels, [""] * SHOWN)
    lines = [
        f"{counted(summary['flows'], 'flow')} of {counted(summary['clips'], 'clip')}, "
        f"{summary['failed']:,} failed, {counted(summary['cuts'], 'cut')}",
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
        picture[_HEIGHT - height :, left : left + _BAR - 3] = (90, 160, 250)
    picture[-1] = (120, 120, 120)
    axis = _line("", width)  # the lengths 0.01, 0.1, 1 and so on, below the bars that begin there
    for place, edge in enumerate(BINS):
        left = place * _BAR
        if round(log10(edge), 6).is_integer() and left < width:
            axis[:, left:] = write_on(axis[:, left:], f"{edge:g}")
    return np.concatenate([_line("flows by mean length, px", width), picture, axis])


def _picture(flow: list[Any], job: Job, plan: Plan) -> Array:
    length, key, clip = flow
    picture, label = np.full((240, 320, 3), 60, np.uint8), f"{length:.3g} px, {Path(clip).name}"
    row = plan.manifest[int(key.partition("_")[0])]
    pair = find_pair(job, row, key)
    if pair is not None and pair.images is not None:
        picture = thumbnail(pair.images[0] // 2 + pair.images[1] // 2)
        label += f" {pair.frame1}" if row.path else ""  # a pair of images is named by its first
    return write_on(picture, label)


@dataclass
class Report:
    """What was found."""

    planned: int
    segments: int = 0
    clips: int = 0
    flows: int = 0
    failed: int = 0
    files: int = 0
    bytes: int = 0
    sampled: int = 0
    largest_difference: float = 0.0  # of the scores of flows that were computed again
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # segments whose files or markers are wrong

    @property
    def missing(self) -> int:
        """How many segments are not finished."""
        return self.planned - self.segments


def check_files(storage: Storage, planned: int) -> Report:
    """Read all files of all finished segments."""
    report = Report(planned)
    for segment in sorted(marked(storage)):
        marker, before = read_marker(storage, segment), len(report.problems)
        if marker is None:
            report.problems.append(f"{marker_name(segment)} is damaged")
        else:
            report.segments += 1
            for count in ("clips", "flows", "failed"):
                setattr(report, count, getattr(report, count) + marker[count])
            _check_segment(storage, marker, report)
        if len(report.problems) > before:
            report.damaged.append(segment)
    return report


def repair(storage: Storage, report: Report) -> None:
    """Remove the markers of damaged segments: the next run computes these again."""
    for segment in report.damaged:
        storage.remove(marker_name(segment))


def _check_segment(storage: Storage, marker: Marker, report: Report) -> None:
    for name, marks in marker["files"].items():
        try:
            with storage.open(name) as stream:
                file = HashedFile(Path(name), stream)
                problem = _count_problem(name, file, marker)
                while file.read(2**22):
                    pass
        except OSError as error:
            report.problems.append(f"{name} cannot be read: {error}")
            continue
        report.files += 1
        report.bytes += file.marks()["bytes"]
        if file.marks() != marks:
            problem = f"{name} differs from what was written"
        report.problems += [problem] if problem else []


def _count_problem(name: str, file: HashedFile, marker: Marker) -> str:
    kind = name.partition("/")[0]
    try:
        if kind in TABLES:
            expected = marker["clips"] if kind == "clips" else marker["flows"] + marker["failed"]
            found = len(_read_table(name, file.read()))
        elif kind == "fields":
            with tarfile.open(fileobj=file, mode="r|") as shard:  # type: ignore[call-overload]
                expected, found = marker["flows"], sum(".flow." in m.name for m in shard)
        else:
            return ""
    except Exception as error:  # whatever a library says about a damaged file
        return f"{name} cannot be read: {error}"
    return "" if found == expected else f"{name} has {found} rows, expected {expected}"


def check_samples(storage: Storage, job: Job, device: str, count: int, report: Report) -> None:
    """Compute some flows of undamaged segments again, and compare their scores."""
    sound = {*marked(storage)} - {*report.damaged}
    names = sorted(name for name in storage.sizes("scores") if Path(name).stem in sound)
    chosen = random.Random(count).choices(names, k=count) if names else []
    worker = Worker(job, device) if chosen else None
    for name in chosen:
        assert worker is not None
        good = [score for score in _read_table(name, storage.read(name)) if score["status"] == OK]
        clips = name.replace("scores", "clips", 1)
        rows = {clip["row"]: clip for clip in _read_table(clips, storage.read(clips))}
        if good:
            score = random.Random(name).choice(good)
            _compare(worker, rows[int(score["key"].partition("_")[0])], score, report)


def _read_table(name: str, data: bytes) -> list[dict[str, Any]]:
    return decode_table(data, name.rpartition(".")[2], TABLES[name.partition("/")[0]])


def _compare(worker: Worker, clip: dict[str, Any], score: dict[str, Any], report: Report) -> None:
    row = Row(**{name: clip[name] or "" for name in Row._fields if name != "flows"})
    pair = find_pair(worker.job, row, score["key"])
    report.sampled += 1
    about = f"{score['key']} ({score['clip']})"
    if pair is None or pair.images is None:
        problem = "there is no such frame now" if pair is None else pair.problem
        report.problems.append(f"{about} cannot be read now: {problem}")
        return
    again = worker.score(*pair.images)
    for name in _COMPARED:
        before, now = score[name] or 0.0, again.get(name) or 0.0
        report.largest_difference = max(report.largest_difference, abs(now - before))
        if abs(now - before) > _TOLERANCE * (1 + abs(before)):
            report.problems.append(f"{about}: {name} was {before:g} and is {now:g} now")
