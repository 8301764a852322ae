"""Segments: the unit of work, written whole or not at all.

An engine, whether it is the loop of one process or a cluster, does this:

    manifest = read_manifest("manifest.parquet")
    plan = Plan(manifest, job.settings)            # plan[i] is a Segment; the same on every machine
    keep_settings(job, manifest.sha256(), len(plan))    # refuses the output of other settings
    done = finished(job.storage())                 # by name: markers whose files are there
    worker = Worker(job, device)                   # loads the network, once for each process
    for outcome in worker.run(segments):           # decodes ahead, across segments
        ...                                        # an Outcome: segment, marker, seconds, slowest

`run_segment(worker, segment)` does the same for one segment. `Job`, `Settings`, `Segment` and
`Outcome` are plain data that can be pickled; a `Worker` stays in its process (`worker.py`, which
imports torch). `Worker.run` may get its segments from a generator that waits and yields None
meanwhile; the outcome of a segment is then yielded while others are computed or waited for.

The name of a segment is its number and a hash of its rows, the settings and the weights: not of
pixels, and not of a scheduler's blocks. Its files depend on nothing else, except the kind of the
device and the number of threads. They are written to a folder of parts, then renamed, and at last
the marker is written: segments/NAME.json, with the size and sha256 of each file. A segment is
finished if its marker is there and right. Computing a segment twice does no harm; on a local
folder, a lock keeps two processes from doing so.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, overload

from .job import Settings
from .manifest import Manifest, Row
from .storage import Storage

Marker = Mapping[str, Any]
MARKERS = "segments"


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a manifest."""

    name: str
    first: int
    """The number of its first row, counted from 0."""
    rows: tuple[Row, ...]
    count: int
    """How many flows the plan expects."""


class Plan(Sequence[Segment]):
    """The segments of a manifest; a segment holds its rows only when it is taken out."""

    def __init__(self, manifest: Manifest, settings: Settings) -> None:
        self.manifest = manifest
        self._edges = _edges(manifest.counts.tolist(), settings.segment)
        common = hashlib.sha256(settings.encode() + manifest.root.encode())
        self.names = [self._name(number, common) for number in range(len(self))]

    def __len__(self) -> int:
        return len(self._edges) - 1

    @overload
    def __getitem__(self, number: int) -> Segment: ...
    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...
    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        """Take out a segment, or several."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        first, last = self._edges[number], self._edges[number + 1]
        rows = tuple(self.manifest.rows(first, last))
        return Segment(self.names[number], first, rows, self.count(number))

    def count(self, number: int) -> int:
        """How many flows the plan expects of a segment."""
        return int(self.manifest.counts[self._edges[number] : self._edges[number + 1]].sum())

    def _name(self, number: int, common: Any) -> str:
        first, last = self._edges[number], self._edges[number + 1]
        identity = common.copy()
        identity.update(b"%d %d " % (first, last))
        identity.update(self.manifest.part(first, last))
        return f"{number:06d}-{identity.hexdigest()[:16]}"


def _edges(counts: list[int], size: int) -> list[int]:
    """Cut between rows, so that segments have at most `size` flows, or a single row."""
    edges, total = [0], 0
    for number, count in enumerate(counts):
        if total and total + count > size:
            edges.append(number)
            total = 0
        total += count
    return [*edges, len(counts)]


def marker_name(segment: str) -> str:
    """The file that says that a segment is finished."""
    return f"{MARKERS}/{segment}.json"


def read_marker(storage: Storage, segment: str) -> Marker | None:
    """Return the marker of a segment; None if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return dict(json.loads(storage.read(marker_name(segment))))
    return None


def finished(storage: Storage) -> dict[str, Marker]:
    """Return the markers of all finished segments: each of their files has the size it should."""
    names = [name.partition("/")[2].removesuffix(".json") for name in storage.sizes(MARKERS)]
    markers = {name: marker for name in names if (marker := read_marker(storage, name))}
    kinds = {name.partition("/")[0] for marker in markers.values() for name in marker["files"]}
    sizes = {name: size for kind in kinds for name, size in storage.sizes(kind).items()}
    return {name: marker for name, marker in markers.items() if _is_right(marker, sizes)}


def is_finished(storage: Storage, segment: str) -> bool:
    """Whether another process has finished a segment in the meantime."""
    return read_marker(storage, segment) is not None


def _is_right(marker: Marker, sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(name) == marks["bytes"] for name, marks in marker["files"].items())
