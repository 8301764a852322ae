"""Manifests: which clips to estimate, a row for each, held as bytes so that millions fit."""

import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, refusing, unknown_name
from ..files import write_files
from .storage import encode_table, is_address, local_path, open_storage, read_input

_END = "\x1f"  # between the entries of a row in memory; a path with it is refused
_DIGITS = 18  # numbers that fit into 64 bits
UNKNOWN_FLOWS = 64  # what a clip counts for when neither its end nor its flows are given


class Row(NamedTuple):
    """A row of a manifest: a pair (image1, image2) or a clip (path), as text."""

    image1: str = ""
    image2: str = ""
    path: str = ""  # a video, a folder of frames, or a pattern of frames
    start: str = ""  # first frame of a clip: 120, or 3.5s
    end: str = ""  # frame to stop before
    stride: str = ""
    flows: str = ""  # how many flows to expect; the plan counts with it, nothing else

    @property
    def name(self) -> str:
        """What the row is about, in messages and tables."""
        return self.path or self.image1

    def problem(self) -> str:
        """What is wrong with the row; empty if nothing is."""
        image1, image2, path, start, end, stride, flows = self  # attributes would be slower
        if path and (image1 or image2):
            return "a row has either path or image1 and image2"
        if not (path or (image1 and image2)):
            return "a row needs path, or both image1 and image2"
        if not path and (start or end or stride):
            return "start, end and stride are for clips, not for a pair"
        if max(len(start), len(end), len(stride), len(flows)) > _DIGITS:
            return f"start, end, stride and flows have at most {_DIGITS} digits"
        return ""

    def expected(self) -> int:
        """How many flows the plan counts for it."""
        if not self.path:
            return 1
        if self.flows.isdecimal():
            return max(1, int(self.flows))
        if self.end.isdecimal() and (self.start or "0").isdecimal():
            stride = int(self.stride) if self.stride.isdecimal() and int(self.stride) else 1
            return max(1, (int(self.end) - int(self.start or 0) - 1) // stride)
        return UNKNOWN_FLOWS


@dataclass(frozen=True)
class Manifest:
    """Rows in order. `root` is the folder that their paths are relative to."""

    root: str
    text: bytes  # all rows, one after the other
    ends: "np.ndarray[Any, np.dtype[np.int64]]"  # where each row ends in `text`
    counts: "np.ndarray[Any, np.dtype[np.int64]]"  # how many flows the plan counts for each row

    @classmethod
    def of(cls, rows: Iterable[Row], root: str, source: str) -> "Manifest":
        """Hold the rows of `source`; a row that no one could process is an error."""
        text, ends, counts = bytearray(), [], []
        for number, row in enumerate(rows, start=1):
            problem = row.problem()
            if problem:
                raise InputError(f"{source}, row {number}: {problem}")
            entries = _END.join(row)
            if entries.count(_END) >= len(row):
                raise InputError(f"{source}, row {number}: {_END!r} cannot be part of an entry")
            text += entries.encode("utf-8", "surrogateescape")
            ends.append(len(text))
            counts.append(row.expected())
        if not ends:
            raise InputError(f"{source} lists nothing to estimate")
        return cls(root, bytes(text), np.array(ends, np.int64), np.array(counts, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> Row:
        return Row(*self.part(number, number + 1).decode("utf-8", "surrogateescape").split(_END))

    def rows(self, first: int, last: int) -> list[Row]:
        """The rows from `first` to before `last`."""
        return [self[number] for number in range(first, last)]

    def part(self, first: int, last: int) -> bytes:
        """The bytes of the same rows."""
        start, end = (int(self.ends[number - 1]) if number else 0 for number in (first, last))
        return self.text[start:end]

    def has_clips(self) -> bool:
        """Whether some row has several flows: a pair has one."""
        return bool((self.counts != 1).any())

    def sha256(self) -> str:
        """Identifies the rows, whatever file they came from."""
        return hashlib.sha256(self.ends.astype("<i8").tobytes() + self.text).hexdigest()


def read_manifest(text: str) -> Manifest:
    """Read a .csv or .parquet file, or list a folder tree, a pattern or a single video."""
    suffix = Path(text).suffix.lower()
    if not (is_address(text) or has_magic(text) or local_path(text).exists()):
        raise FileNotFoundError(f"no manifest, folder or video {text}")
    if suffix not in _READERS:
        return Manifest.of((Row(path=clip) for clip in _clips(text)), "", text)
    root = text.rpartition("/")[0] if is_address(text) else str(local_path(text).resolve().parent)
    return Manifest.of(_READERS[suffix](text), root, text)


def _read_csv(text: str) -> Iterator[Row]:
    source = io.BytesIO(read_input(text)) if is_address(text) else local_path(text).open("rb")
    with io.TextIOWrapper(source, "utf-8-sig", newline="") as lines:
        table = csv.reader(lines)
        try:
            columns = next(table, [])
            arrange = _arrangement(text, columns)
            for entries in table:
                if len(entries) != len(columns):
                    raise InputError(
                        f"{text}, line {table.line_num}: the number of entries is "
                        f"{len(entries)}, that of the first line {len(columns)}"
                    )
                yield Row._make(arrange([*map(str.strip, entries), ""]))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{text} is not a table in UTF-8: {error}") from None


def _read_parquet(text: str) -> Iterator[Row]:
    try:
        from pyarrow import BufferReader, parquet, types
    except ImportError:
        raise InputError(f"{text} needs pyarrow: pip install 'dicl-flow[bulk]'") from None
    source = BufferReader(read_input(text)) if is_address(text) else str(local_path(text))
    # what pyarrow raises for damaged files is not documented
    with refusing(f"{text} is not a Parquet file, or is damaged", Exception):
        table = parquet.ParquetFile(source)
        arrange = _arrangement(text, table.schema_arrow.names)
        allowed = (types.is_string, types.is_large_string, types.is_integer, types.is_floating)
        for column in table.schema_arrow:
            kind = column.type.value_type if types.is_dictionary(column.type) else column.type
            if not (types.is_null(kind) or any(check(kind) for check in allowed)):
                about = f"the column {column.name} has the type {column.type}"
                raise InputError(f"{text}: {about}, not text or numbers")
        for batch in table.iter_batches():
            columns = (map(_word, column.to_pylist()) for column in batch.columns)
            for entries in zip(*columns, repeat(""), strict=False):
                yield Row._make(arrange(entries))


def _word(entry: object) -> str:
    """An entry of a Parquet file as in a CSV file: None is empty, 3.0 is 3."""
    if isinstance(entry, str):
        return entry
    if entry is None or entry != entry:  # NaN
        return ""
    return str(int(entry) if isinstance(entry, float) and entry.is_integer() else entry)


def _arrangement(text: str, columns: Sequence[str]) -> Callable[[Sequence[str]], Iterable[str]]:
    """Check columns; return what puts entries, the last of which is empty, in a row's order."""
    columns = [column.strip() for column in columns]
    for column in columns:
        if column not in Row._fields:
            raise InputError(f"{text}: {unknown_name('column', column, Row._fields)}")
        if columns.count(column) > 1:
            raise InputError(f"{text} has two columns {column}")
    if "path" not in columns and not {"image1", "image2"} <= set(columns):
        raise InputError(f"{text} has no column path, and not both image1 and image2")
    return itemgetter(*(columns.index(n) if n in columns else -1 for n in Row._fields))


_READERS = {".csv": _read_csv, ".parquet": _read_parquet}
MANIFEST_SUFFIXES = tuple(_READERS)


def _clips(text: str) -> Iterator[str]:
    from ..video.frames import clips_among, clips_below, clips_by_folder, clips_of_pattern

    path = local_path(text)
    if is_address(text):
        address = text.rstrip("/")
        files = open_storage(address).sizes("")
        return clips_by_folder(f"{address}/{name.lstrip('/')}" for name in files)
    if path.is_dir():
        return clips_below(path.resolve())
    if not path.is_file():
        return clips_of_pattern(path.absolute())
    video = path.resolve()
    clips = [*clips_among(str(video.parent), [video.name], "")]
    if not clips:
        kinds = ", ".join(MANIFEST_SUFFIXES)
        raise InputError(f"{video} is neither a manifest ({kinds}) nor a video")
    return iter(clips)


def with_flows(row: Row, place: str) -> Row:
    """Fill in how many flows the clip at `place` will have, if that is known."""
    from ..video.frames import count_frames

    frames = None if is_address(place) else count_frames(place)
    return row if frames is None else row._replace(flows=str(max(1, frames - 1)))


def write_manifest(path: Path, rows: Sequence[Row]) -> None:
    """Write rows to a .csv or .parquet file, without empty columns."""
    columns = {name: [getattr(row, name) for row in rows] for name in Row._fields}
    columns = {name: column for name, column in columns.items() if any(column)}
    write_files({path: encode_table(columns, path.suffix[1:].lower())})
