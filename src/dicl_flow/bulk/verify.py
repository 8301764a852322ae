"""Reads a whole output again: all files, hashes and counts; computes some flows again."""

import hashlib
import io
import random
import tarfile
from dataclasses import dataclass, field
from typing import IO, Any

from .decoding import find_pair
from .job import Job
from .manifest import Row
from .scores import TYPES
from .segments import MARKERS, Marker, read_marker
from .storage import Storage
from .tables import decode_table
from .writing import CLIP_TYPES, OK

_COMPARED = ("mean_length", "median_length", "p95_length", "max_length", "confidence", "sharpness")
_TOLERANCE = 0.01  # relative, and in px: other devices and numbers of threads round differently


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
    largest_difference: float = 0.0
    """Of the scores of flows that were computed again."""
    problems: list[str] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many segments are not finished."""
        return self.planned - self.segments


def check_files(storage: Storage, planned: int) -> Report:
    """Read all files of all finished segments."""
    report = Report(planned)
    for name in sorted(storage.sizes(MARKERS)):
        segment = name.partition("/")[2].removesuffix(".json")
        marker = read_marker(storage, segment)
        if marker is None:
            report.problems.append(f"{name} is damaged")
            continue
        report.segments += 1
        for count in ("clips", "flows", "failed"):
            setattr(report, count, getattr(report, count) + marker[count])
        _check_segment(storage, marker, report)
    return report


def _check_segment(storage: Storage, marker: Marker, report: Report) -> None:
    for name, marks in marker["files"].items():
        try:
            with storage.open(name) as stream:
                file = _Hashed(stream)
                problem = _count_problem(name, file, marker)
                while file.read(2**22):
                    pass
        except OSError as error:
            report.problems.append(f"{name} cannot be read: {error}")
            continue
        report.files += 1
        report.bytes += file.bytes
        if file.sha256() != marks["sha256"]:
            problem = f"{name} differs from what was written"
        report.problems += [problem] if problem else []


class _Hashed(io.RawIOBase):
    """A stream that is hashed while it is read: shards may be larger than memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._hash, self.bytes = stream, hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size) if size >= 0 else self._stream.read()
        self._hash.update(data)
        self.bytes += len(data)
        return data

    def sha256(self) -> str:
        return self._hash.hexdigest()


def _count_problem(name: str, file: _Hashed, marker: Marker) -> str:
    """Compare the number of rows, or of fields, with the marker."""
    kind, suffix = name.partition("/")[0], f".{name.rpartition('.')[2]}"
    try:
        if kind == "scores":
            expected = marker["flows"] + marker["failed"]
            found = len(decode_table(file.read(), suffix, TYPES)["key"])
        elif kind == "clips":
            expected = marker["clips"]
            found = len(decode_table(file.read(), suffix, CLIP_TYPES)["row"])
        elif kind == "fields":
            with tarfile.open(fileobj=file, mode="r|") as shard:
                expected, found = marker["flows"], sum(".flow." in m.name for m in shard)
        else:
            return ""
    except Exception as error:  # whatever a library says about a damaged file
        return f"{name} cannot be read: {error}"
    return "" if found == expected else f"{name} has {found} rows, expected {expected}"


def check_samples(storage: Storage, job: Job, device: str, count: int, report: Report) -> None:
    """Compute some flows again, and compare their scores."""
    from .worker import Worker

    names = sorted(name for name in storage.sizes("scores"))
    chosen = random.Random(count).choices(names, k=count) if names else []
    worker = Worker(job, device) if chosen else None
    for name in chosen:
        assert worker is not None
        suffix = f".{name.rpartition('.')[2]}"
        scores = _rows(decode_table(storage.read(name), suffix, TYPES))
        clips = decode_table(storage.read(name.replace("scores", "clips", 1)), suffix, CLIP_TYPES)
        rows = {clip["row"]: clip for clip in _rows(clips)}
        good = [score for score in scores if score["status"] == OK]
        if good:
            score = random.Random(name).choice(good)
            _compare(worker, rows[int(score["key"].partition("_")[0])], score, report)


def _compare(worker: Any, clip: dict[str, Any], score: dict[str, Any], report: Report) -> None:
    row = Row(**{name: clip[name] or "" for name in Row._fields if name != "flows"})
    pair = find_pair(worker.job, row, score["key"])
    report.sampled += 1
    if pair is None or pair.images is None:
        problem = "there is no such frame now" if pair is None else pair.problem
        report.problems.append(f"{score['key']} ({score['clip']}) cannot be read now: {problem}")
        return
    again = worker.score(*pair.images)
    for name in _COMPARED:
        before, now = score[name] or 0.0, again.get(name) or 0.0
        report.largest_difference = max(report.largest_difference, abs(now - before))
        if abs(now - before) > _TOLERANCE * (1 + abs(before)):
            report.problems.append(
                f"{score['key']} ({score['clip']}): {name} was {before:g} and is {now:g} now"
            )


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
