"""A bulk run as plain data: its settings, its plan of segments, and the markers of finished ones.

An engine computes the segments of a `Plan`, which is the same on every machine, that are not
`finished`. `Job`, `Settings`, `Segment` and `Outcome` can be pickled; a `Worker` stays in its
process. It may get its segments from a generator that waits and yields None meanwhile.

A segment is written whole or not at all. Its name is its number and a hash of its rows, the
settings and the weights: not of pixels, and not of a scheduler's blocks. Its files depend on
nothing else, except the kind of the device and the number of threads. They are written to a folder
of parts, then renamed, and at last the marker is written: segments/NAME.json, with the size and
sha256 of each file. A segment is finished if its marker is there and right. Computing a segment
twice does no harm; on a local folder, a lock keeps two processes from doing so.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, setting_in_words, unknown_name
from ..files import FLOW_SUFFIXES, check_flow_name, read_bytes
from .manifest import Manifest, Row
from .storage import Storage, check_table, encode_json, is_address, open_storage, read_json

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator

_FILE = "settings.json"
Marker = Mapping[str, Any]
_MARKERS = "segments"


@dataclass(frozen=True)
class Settings:
    """What to compute and to write of each flow."""

    weights: str  # the sha256 of the weights file
    scores: bool = True  # write a table with a row for each flow, and one with a row for each clip
    table: str = "parquet"  # the format of the tables: parquet or csv
    fields: str = ""  # write flow fields as tar shards of npy (fp16) or png (KITTI); empty: none
    grid: int = 1  # fields are means over squares of this side, in px of the frame; 1: every pixel
    flows: str = ""  # write a flow file for each flow, such as flo; empty: none
    occlusion: bool = False  # estimate the backward flow too, and with it the occluded share
    min_confidence: float | None = None  # flow with less confidence is unknown
    device: str = "cpu"  # the kind of device: cpu, cuda or mps
    precision: str = "auto"
    backend: str = "auto"
    quality: str = "normal"
    full_size: bool = False
    decoder: str = "pyav"  # what reads videos: pyav or opencv
    segment: int = 256  # how many flows are written at a time, at least if clips are short
    tables: int = 1
    """What columns the tables have: a change of them gets the next number, so that none mix."""

    def __post_init__(self) -> None:
        if not (self.scores or self.fields or self.flows):
            raise InputError("nothing to write: choose scores, `fields` or `flows`")
        for name, known in {
            "decoder": ["pyav", "opencv"],
            "fields": ["npy", "png"],
            "flows": [suffix[1:] for suffix in FLOW_SUFFIXES],
        }.items():
            value = getattr(self, name)
            if value not in known and not (value == "" and name in ("fields", "flows")):
                raise unknown_name(f"`{name}`", value, known)
        check_table(self.table)
        if self.flows:
            check_flow_name(f".{self.flows}")
        if self.grid != 1 and not self.fields:
            raise InputError("`grid` is for `fields`, and none are written")
        for name in ("grid", "segment"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class Job:
    """A bulk run: all that a process needs to compute any segment of it."""

    settings: Settings
    out: str  # the folder of the output, a path or an address
    root: str = ""  # the folder that the paths of the manifest are relative to
    weights: str | None = None  # name or path of the weights
    memory_limit: int | None = None  # bytes that an estimate may use

    def storage(self) -> Storage:
        """Open the output."""
        return open_storage(self.out)

    def place(self, text: str) -> str:
        """Where a path of the manifest leads."""
        if is_address(text) or not self.root:
            return text
        return f"{self.root}/{text}" if is_address(self.root) else str(Path(self.root) / text)

    def load(self, device: str) -> "FlowEstimator":
        """Load the network onto a device; other weights than those of the settings are refused."""
        from ..estimation.estimator import load

        how, file = self.settings, self.weights
        if file and Path(file).is_file() and sha256_of(file) != how.weights:
            known = f"the weights of {self.out}, whose sha256 is {how.weights}"
            raise InputError(f"{file} differs from {known}")
        compute = (device, how.precision, how.backend, self.memory_limit, how.quality)
        return load(self.weights, *compute, full_size=how.full_size)


def sha256_of(path: str | Path) -> str:
    """Identifies a weights file."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def keep_settings(job: Job, manifest: str, segments: int) -> None:
    """Write the settings and the sha256 of `manifest`, or refuse to add to the output of others."""
    about = {"manifest": manifest, "root": job.root, "segments": segments}
    now, storage = {**asdict(job.settings), **about}, job.storage()
    if storage.create(_FILE, encode_json(now)):
        return
    before = read_json(storage, _FILE)
    changes = [
        f"`{name}` was {_word(before.get(name))} and is {_word(now.get(name))} now"
        for name in now
        if name != "segments" and before.get(name) != now.get(name)
    ]
    if changes:
        others = f"the output of other settings: {', '.join(changes)}"
        raise InputError(f"{job.out} holds {others}; use the same settings, or another output")


def read_settings(storage: Storage, out: str) -> tuple[Settings, dict[str, Any]]:
    """Read the settings of an output, and what it says of its manifest: sha256, root, segments."""
    try:
        stored = dict(read_json(storage, _FILE))
    except FileNotFoundError:
        raise FileNotFoundError(f"no bulk output at {out}: it has no {_FILE}") from None
    try:
        return Settings(
            **{field.name: stored.pop(field.name) for field in fields(Settings)}
        ), stored
    except KeyError as error:
        raise InputError(
            f"{out}/{_FILE} has no {error}: another version of dicl-flow wrote it, or it is damaged"
        ) from None


def _word(value: Any) -> str:
    text = setting_in_words(value)
    return f"{text[:12]}…" if len(text) == hashlib.sha256().digest_size * 2 else text


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a manifest."""

    name: str
    first: int  # the number of its first row, counted from 0
    rows: tuple[Row, ...]


class Plan:
    """The segments of a manifest; a segment holds its rows only when it is taken out."""

    def __init__(self, manifest: Manifest, settings: Settings) -> None:
        self.manifest = manifest
        self._edges = _edges(manifest.counts.tolist(), settings.segment)
        about = json.dumps(asdict(settings), sort_keys=True) + manifest.root
        common = hashlib.sha256(about.encode())
        self.names = []
        for number, (first, last) in enumerate(pairwise(self._edges)):
            identity = common.copy()
            identity.update(b"%d %d " % (first, last) + manifest.part(first, last))
            self.names.append(f"{number:06d}-{identity.hexdigest()[:16]}")

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __iter__(self) -> Iterator[Segment]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Segment:
        first, last = self._edges[number], self._edges[number + 1]
        return Segment(self.names[number], first, tuple(self.manifest.rows(first, last)))

    def count(self, number: int) -> int:
        """How many flows the plan expects of a segment."""
        return int(self.manifest.counts[self._edges[number] : self._edges[number + 1]].sum())


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
    return f"{_MARKERS}/{segment}.json"


def read_marker(storage: Storage, segment: str) -> Marker | None:
    """Return the marker of a segment; None if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return dict(read_json(storage, marker_name(segment)))
    return None


def marked(storage: Storage) -> list[str]:
    """Return the segments that have a marker, right or wrong."""
    return [name.partition("/")[2].removesuffix(".json") for name in storage.sizes(_MARKERS)]


def finished(storage: Storage) -> dict[str, Marker]:
    """Return the markers of all finished segments: each of their files has the size it should."""
    markers = {name: marker for name in marked(storage) if (marker := read_marker(storage, name))}
    kinds = {name.partition("/")[0] for marker in markers.values() for name in marker["files"]}
    sizes = {name: size for kind in kinds for name, size in storage.sizes(kind).items()}
    return {
        name: marker
        for name, marker in markers.items()
        if all(sizes.get(file) == marks["bytes"] for file, marks in marker["files"].items())
    }
