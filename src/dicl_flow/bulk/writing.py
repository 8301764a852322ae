"""The files of a segment: a locked folder of parts, what is written to it, and by which threads."""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from platform import node
from tempfile import mkdtemp
from time import perf_counter
from typing import IO, Any

import numpy as np

from ..errors import InputError
from ..files import Array, encode_flow, encode_npy, naming
from ..files.atomic import FolderLock
from ..video.flows import Behind
from .job import Job, Marker, Settings, marker_name, read_marker
from .manifest import Row
from .storage import LocalFolder, Storage, encode_json, encode_table

_PARTS = ".parts"
LENGTHS = ("mean", "median", "p95", "max")
_FLOW_TYPES: dict[str, type] = {
    **dict.fromkeys(("key", "clip", "frame1", "frame2"), str),
    "time": float,
    **dict.fromkeys(("width", "height"), int),
    **dict.fromkeys([f"{name}_length" for name in LENGTHS], float),
    **dict.fromkeys([f"{name}_share" for name in LENGTHS], float),
    **dict.fromkeys(("direction", "moving_share", "density"), float),
    **dict.fromkeys(("confidence", "sharpness", "occluded", "explained"), float),
    "scene_cut": bool,
    **dict.fromkeys(("status", "weights"), str),
}
_CLIP_TYPES: dict[str, type] = {
    "row": int,
    **{name: str for name in Row._fields if name != "flows"},
    **dict.fromkeys(("flows", "failed", "cuts"), int),
    **dict.fromkeys(("mean_length", "max_length", "mean_share", "moving_share"), float),
    **dict.fromkeys(("confidence", "sharpness", "explained"), float),
    **dict.fromkeys(("status", "weights"), str),
}
TABLES = {"scores": _FLOW_TYPES, "clips": _CLIP_TYPES}
OK = "ok"
BINS = np.geomspace(0.01, 1000, 51)  # edges for mean lengths, px; first and last bin are open
SHOWN = 4  # calmest and fastest flows, of each segment and of the run
_FAILURES = 5

Entries = dict[str, Any]
Watch = Callable[[int], None]  # called with the number of flows whenever some are written
Arriving = Callable[[], Array]  # waits until an array has arrived from the device


@dataclass(frozen=True)
class Pair:
    """Two frames of a row, or why they cannot be read. Consecutive pairs share their frame."""

    row: int  # its number in the manifest
    number: int  # of the flow in its row
    name: str  # of the row
    frame1: str = ""
    frame2: str = ""
    time: float | None = None
    images: tuple[Array, Array] | None = None  # (H, W, 3) uint8 RGB, of one size
    problem: str = ""

    @property
    def key(self) -> str:
        """Identifies the flow in the whole output."""
        return f"{self.row:09d}_{self.number:06d}"

    @property
    def about(self) -> dict[str, str]:
        """Names its row and its frames."""
        return {"clip": self.name, "frame1": self.frame1, "frame2": self.frame2}


class PartsFolder:
    """A folder for the unfinished files of a segment; not `held` if another process computes it.

    Next to a local output, so that files can be renamed; locked until it is released or the process
    ends. Stores and some network drives have no locks: there, two processes may write the same.
    """

    def __init__(self, storage: Storage, segment: str) -> None:
        self.segment, self._storage = segment, storage
        self._lock: FolderLock | None = None
        self.held = True
        if not isinstance(storage, LocalFolder):
            self.path = Path(mkdtemp(prefix="dicl-flow-"))
            return
        place = storage.root / _PARTS / segment
        self.path = place / f"{node()}-{os.getpid()}"
        self._lock = FolderLock(place)
        self.held = self._lock.acquire()
        if self.held:
            try:
                if _locks_work(place.parent):
                    for left in (path for path in place.iterdir() if path.is_dir()):
                        shutil.rmtree(left)  # by a killed process
                self.path.mkdir(exist_ok=True)
            except BaseException:
                self._lock.remove()
                raise

    def publish(self, files: dict[str, Path], marker: Marker) -> None:
        """Move the files to their places, then write the marker, and release the folder."""
        self._storage.remove(marker_name(self.segment))  # that of damaged files
        self._storage.publish(files)
        self._storage.write(marker_name(self.segment), encode_json(marker))
        self.release()

    def release(self) -> None:
        """Remove the folder of parts, and let others compute the segment."""
        if not self.held:
            return
        self.held = False
        try:
            with suppress(FileNotFoundError):  # the output has disappeared
                shutil.rmtree(self.path)
        finally:
            if self._lock is not None:
                self._lock.remove()


@cache
def _locks_work(parts: Path) -> bool:
    """Whether a lock here keeps others out; if in doubt, not."""
    first, second = (FolderLock(parts / f"try-{node()}-{os.getpid()}") for _ in range(2))
    first.acquire()
    works = not second.acquire()
    second.release()
    first.remove()
    return works


def sweep(storage: Storage) -> None:
    """Remove what processes that were killed have left, except where another one computes."""
    if not isinstance(storage, LocalFolder):
        return
    parts = storage.root / _PARTS
    if parts.is_dir() and _locks_work(parts):
        for folder in parts.iterdir():
            PartsFolder(storage, folder.name).release()
    with suppress(OSError):  # another run uses it, or has removed it
        parts.rmdir()


class SegmentFiles:
    """Collects the flows of a segment; `finish` returns its files and its marker."""

    def __init__(self, folder: PartsFolder, settings: Settings) -> None:
        self.folder, self._name, self._settings = folder, folder.segment, settings
        self._flows: list[Entries] = []
        self._clips: list[Entries] = []
        self._ended = 0  # flows of clips that are complete
        self._files: dict[str, HashedFile] = {}
        self._tar: tarfile.TarFile | None = None
        if settings.fields:
            shard = self._open(f"fields/{self._name}.tar")
            # an uncompressed stream, written once from start to end, and hashed on the way
            self._tar = tarfile.open(fileobj=shard, mode="w|", format=tarfile.USTAR_FORMAT)  # type: ignore[call-overload]  # noqa: SIM115

    def add(self, pair: Pair, scores: Entries, field: Array | None, flow: Array | None) -> None:
        """Add a flow; `field` and `flow` are (H, W, 2), if they are to be written."""
        status = pair.problem or OK
        name = f"flows/{self._name}/{pair.key}.{self._settings.flows}"
        try:
            data = b""
            if field is not None and self._settings.fields == "npy":
                data = encode_npy(field.astype(np.float16))
            elif field is not None:
                data = encode_flow("field.png", field)
            if flow is not None:
                self._write(name, encode_flow(name, flow))
            if data:
                self._add_field(pair, data)
        except InputError as error:  # motion beyond the range of a format
            status = str(error)
        time = None if pair.time is None else round(pair.time, 6)
        about = {"key": pair.key, **pair.about, "time": time, "weights": self._settings.weights}
        self._flows.append({**about, **scores, "status": status})

    def end_clip(self, number: int, row: Row) -> None:
        """Add the row of a clip, whose flows have been added."""
        mine, self._ended = self._flows[self._ended :], len(self._flows)
        good = [flow for flow in mine if flow["status"] == OK]
        problem = next((flow["status"] for flow in mine if flow["status"] != OK), OK)
        numbers = [name for name, kind in _CLIP_TYPES.items() if kind is float]
        longest = [flow["max_length"] for flow in good if flow.get("max_length") is not None]
        self._clips.append(
            {
                **row._asdict(),
                **{"row": number, "flows": len(good), "failed": len(mine) - len(good)},
                "cuts": sum(flow["scene_cut"] for flow in good),
                **{name: _mean([flow.get(name) for flow in good]) for name in numbers},
                "max_length": max(longest, default=None),  # the only one that is not a mean
                **{"status": problem, "weights": self._settings.weights},
            }
        )

    def finish(self) -> tuple[dict[str, Path], Marker]:
        """Close the files; return where they are by their final names, and the marker."""
        if self._tar is not None:
            self._tar.close()
        if self._settings.scores:
            suffix = self._settings.table
            for (kind, types), rows in zip(TABLES.items(), (self._flows, self._clips), strict=True):
                columns = {name: [row.get(name) for row in rows] for name in types}
                data = encode_table(columns, suffix, types)
                self._write(f"{kind}/{self._name}.{suffix}", data)
        for file in self._files.values():
            file.close()
        marker = {
            "segment": self._name,
            "files": {name: file.marks() for name, file in self._files.items()},
            **_digest(self._flows, self._clips),
        }
        return {name: file.path for name, file in self._files.items()}, marker

    def _open(self, name: str) -> "HashedFile":
        path = self.folder.path / f"{len(self._files)}"
        self._files[name] = HashedFile(path, path.open("wb"))
        return self._files[name]

    def _write(self, name: str, data: bytes) -> None:
        file = self._open(name)
        file.write(data)
        file.close()

    def _add_field(self, pair: Pair, data: bytes) -> None:
        assert self._tar is not None
        assert pair.images is not None
        height, width = pair.images[0].shape[:2]
        size = {"width": width, "height": height, "grid": self._settings.grid}
        about = json.dumps({**pair.about, **size}).encode()
        for ending, content in {f"flow.{self._settings.fields}": data, "json": about}.items():
            entry = tarfile.TarInfo(f"{pair.key}.{ending}")  # no owner, no time
            entry.size = len(content)
            self._tar.addfile(entry, io.BytesIO(content))


class HashedFile:
    """Counts and hashes what is written to a file, or read from it: it may not fit in memory."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path, self._stream = path, stream
        self._hash, self._bytes = hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        with naming(self.path):
            return self._stream.write(self._counted(data))

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or all."""
        return self._counted(self._stream.read(size) if size >= 0 else self._stream.read())

    def close(self) -> None:
        """Close the file."""
        with naming(self.path):
            self._stream.close()

    def marks(self) -> dict[str, Any]:
        """What the marker of a segment holds of the file."""
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def _counted(self, data: bytes) -> bytes:
        self._hash.update(data)
        self._bytes += len(data)
        return data


def _digest(flows: list[Entries], clips: list[Entries]) -> dict[str, Any]:
    """What the summary of the run needs of a segment, so that it need not read the tables."""
    good = [flow for flow in flows if flow["status"] == OK]
    moving = [flow for flow in good if flow.get("mean_length") is not None]
    ordered = sorted(moving, key=itemgetter("mean_length"))
    named = [[*itemgetter("mean_length", "key", "clip")(flow)] for flow in ordered]
    bins = np.digitize([flow["mean_length"] for flow in moving], BINS[1:-1])
    failed = [flow for flow in flows if flow["status"] != OK]
    failures = [[flow["clip"], flow["status"]] for flow in failed]
    return {
        "clips": len(clips),
        "flows": len(good),
        "failed": len(failed),
        "cuts": sum(flow["scene_cut"] for flow in good),
        "histogram": dict(sorted(Counter(map(int, bins)).items())),
        "calmest": named[:SHOWN],
        "fastest": named[::-1][:SHOWN],
        "failures": failures[:_FAILURES],
        **({"reasons": _reasons(failed)} if failed else {}),
    }


def _reasons(failed: list[Entries]) -> dict[str, list[Any]]:
    """By reason: how many flows failed for it, and the clip and the status of the first."""
    reasons: dict[str, list[Any]] = {}
    for flow in failed:
        names = sorted({flow["clip"], flow["frame1"], flow["frame2"]} - {""}, key=len)
        named = "|".join(map(re.escape, reversed(names)))
        # a reason is a status without names and numbers, which differ from flow to flow
        reason = re.sub(rf"(?<!\w)({named})(?!\w)|[0-9]+", "…", flow["status"])
        reasons.setdefault(reason, [0, flow["clip"], flow["status"]])[0] += 1
    return reasons


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{sum(known) / len(known):.7g}") if known else None


@dataclass(frozen=True)
class Outcome:
    """What became of a segment."""

    segment: str
    marker: Marker | None  # None if another process computes it, or has just finished it
    seconds: float = 0.0  # from the end of the previous segment to the end of this one
    slowest: tuple[str, float] = ("", 0.0)  # the clip that took longest, and its seconds


@dataclass(frozen=True)
class Step:
    """What the decoding thread passes on: a pair, the end of a row, or of a segment; or nothing."""

    files: SegmentFiles | None = None
    pair: Pair | None = None
    row: tuple[int, Row] | None = None


class Writer:
    """The writing thread; that of `ends` publishes, else the device would wait for a slow drive."""

    def __init__(self, job: Job, watch: Watch, ends: Behind) -> None:
        self._settings, self._storage = job.settings, job.storage()
        self._watch, self._ends = watch, ends
        self.outcomes: deque[Outcome] = deque()
        self._folders: deque[PartsFolder] = deque()  # some are ahead of the network at the end
        self._segment_start = self._clip_start = perf_counter()
        self._slowest = ("", 0.0)

    def begin(self, segment: str, *, again: bool) -> SegmentFiles | None:
        """Lock a segment; None if another process computes it, or has finished it."""
        folder = PartsFolder(self._storage, segment)
        if not again and folder.held and read_marker(self._storage, segment):
            folder.release()
        if not folder.held:
            self.outcomes.append(Outcome(segment, None))
            return None
        while self._folders and not self._folders[0].held:
            self._folders.popleft()  # published
        self._folders.append(folder)
        return SegmentFiles(folder, self._settings)

    def release(self) -> None:
        """Let others compute the segments that are not finished."""
        for folder in self._folders:
            folder.release()

    def write(
        self,
        files: SegmentFiles,
        pair: Pair,
        scores: Callable[[], Entries] = dict,
        field: Arriving | None = None,
        flow: Arriving | None = None,
    ) -> None:
        """Add a flow to the files of its segment."""
        entries = scores()
        vectors = (None if sent is None else np.moveaxis(sent(), 0, 2) for sent in (field, flow))
        files.add(pair, entries, *vectors)
        self._watch(1)

    def end(self, files: SegmentFiles, row: tuple[int, Row] | None) -> None:
        """End a row, or a segment."""
        if row is None:
            self._ends.do(partial(self._publish, files, self._slowest))
            self._slowest = ("", 0.0)
            return
        files.end_clip(*row)
        now = perf_counter()
        clip = (row[1].name, now - self._clip_start)
        self._slowest = max(self._slowest, clip, key=itemgetter(1))
        self._clip_start = now

    def _publish(self, files: SegmentFiles, slowest: tuple[str, float]) -> None:
        paths, marker = files.finish()
        files.folder.publish(paths, marker)
        now = perf_counter()
        seconds, self._segment_start = now - self._segment_start, now
        self.outcomes.append(Outcome(marker["segment"], marker, seconds, slowest))
