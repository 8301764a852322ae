"""Manifests: which clips to estimate, a row for each, held as bytes so that millions fit."""

import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from itertools import pairwise, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, unknown_name
from ..files import write_files
from .storage import RemoteFolder, is_address, local_path, read_input
from .tables import encode_table

_END = "\x1f"  # between the entries of a row in memory; a path with it is refused
_DIGITS = 18  # numbers that fit into 64 bits
UNKNOWN_FLOWS = 64
"""How many flows a clip counts for when neither its end nor its number of flows is given."""


class Row(NamedTuple):
    """A row of a manifest: a pair (image1, image2) or a clip (path), as text."""

    image1: str = ""
    image2: str = ""
    path: str = ""
    """A video, a folder of frames, or a pattern of frames."""
    start: str = ""
    """First frame of a clip: 120, or 3.5s."""
    end: str = ""
    """Frame to stop before."""
    stride: str = ""
    flows: str = ""
    """How many flows to expect; the plan counts with it, nothing else."""

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
    text: bytes
    """All rows, one after the other."""
    ends: "np.ndarray[Any, np.dtype[np.int64]]"
    """Where each row ends in `text`."""
    counts: "np.ndarray[Any, np.dtype[np.int64]]"
    """How many flows the plan counts for each row."""

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

    def part(self, first: int, last: int) -> bytes:
        """The bytes of the rows from `first` to before `last`."""
        return self.text[self._start(first) : self._start(last)]

    def rows(self, first: int, last: int) -> list[Row]:
        """The same, as rows."""
        edges = [self._start(number) for number in range(first, last + 1)]
        texts = (self.text[a:b] for a, b in pairwise(edges))
        return [Row(*text.decode("utf-8", "surrogateescape").split(_END)) for text in texts]

    def has_clips(self) -> bool:
        """Whether some row has several flows: a pair has one."""
        return bool((self.counts != 1).any())

    def sha256(self) -> str:
        """Identifies the rows, whatever file they came from."""
        return hashlib.sha256(self.ends.astype("<i8").tobytes() + self.text).hexdigest()

    def _start(self, number: int) -> int:
        return int(self.ends[number - 1]) if number else 0


def read_manifest(text: str) -> Manifest:
    """Read a .csv or .parquet file, or list a folder tree, a pattern or a single video."""
    suffix = Path(text).suffix.lower()
    if not (is_address(text) or has_magic(text) or local_path(text).exists()):
        raise FileNotFoundError(f"no manifest, folder or video {text}")
    if suffix not in _READERS:
        return Manifest.of(list_rows(text), "", text)
    root = text.rpartition("/")[0] if is_address(text) else str(local_path(text).resolve().parent)
    return Manifest.of(_READERS[suffix](text), root, text)


def _read_csv(text: str) -> Iterator[Row]:
    with _lines(text) as lines:
        table = csv.reader(lines)
        try:
            columns = _check_columns(text, next(table, []))
            arrange = _arranged(columns)
            for entries in table:
                if len(entries) != len(columns):
                    raise InputError(
                        f"{text}, line {table.line_num}: {len(entries)} entries, but the first "
                        f"line has {len(columns)}"
                    )
                yield Row._make(arrange([*map(str.strip, entries), ""]))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{text} is not a table in UTF-8: {error}") from None


@contextmanager
def _lines(text: str) -> Iterator[Iterable[str]]:
    if is_address(text):
        yield io.StringIO(read_input(text).decode("utf-8-sig"), newline="")
        return
    with local_path(text).open(newline="", encoding="utf-8-sig") as file:
        yield file


def _read_parquet(text: str) -> Iterator[Row]:
    try:
        from pyarrow import BufferReader, parquet
    except ImportError:
        raise InputError(f"{text} needs pyarrow: pip install 'dicl-flow[bulk]'") from None
    source = BufferReader(read_input(text)) if is_address(text) else str(local_path(text))
    with _parquet_errors(text):
        table = parquet.ParquetFile(source)
        schema = table.schema_arrow
    names = _check_columns(text, schema.names)
    _check_types(text, dict(zip(names, schema.types, strict=True)))
    arrange = _arranged(names)
    batches = table.iter_batches()
    while columns := _next_columns(text, batches):
        for entries in zip(*columns, repeat(""), strict=False):
            yield Row._make(arrange(entries))


def _next_columns(text: str, batches: Iterator[Any]) -> list[list[str]]:
    """The entries of the next rows, by column; nothing at the end."""
    with _parquet_errors(text):
        batch = next(batches, None)
        columns = [] if batch is None else batch.columns
        return [[*map(_word, column.to_pylist())] for column in columns]


@contextmanager
def _parquet_errors(text: str) -> Iterator[None]:
    """Turn what pyarrow raises for damaged files, which is not documented, into one error."""
    try:
        yield
    except Exception as error:
        sentence = " ".join(str(error).split())
        raise InputError(f"{text} is not a Parquet file, or is damaged: {sentence}") from None


def _check_types(text: str, columns: Mapping[str, Any]) -> None:
    from pyarrow import types

    for name, kind in columns.items():
        value = kind.value_type if types.is_dictionary(kind) else kind
        allowed = (types.is_string, types.is_large_string, types.is_integer, types.is_floating)
        if not (types.is_null(value) or any(check(value) for check in allowed)):
            raise InputError(f"{text}: the column {name} has the type {kind}, not text or numbers")


def _arranged(columns: Sequence[str]) -> Callable[[Sequence[str]], Iterable[str]]:
    """Put entries, the last of which is empty, into the order of a row."""
    places = (columns.index(name) if name in columns else -1 for name in Row._fields)
    return itemgetter(*places)


def _word(entry: object) -> str:
    """An entry of a Parquet file as in a CSV file: None is empty, 3.0 is 3."""
    if isinstance(entry, str):
        return entry
    if entry is None or entry != entry:  # NaN
        return ""
    return str(int(entry) if isinstance(entry, float) and entry.is_integer() else entry)


def _check_columns(text: str, columns: Sequence[str]) -> Sequence[str]:
    columns = [column.strip() for column in columns]
    for column in columns:
        if column not in Row._fields:
            raise InputError(f"{text}: {unknown_name('column', column, Row._fields)}")
        if columns.count(column) > 1:
            raise InputError(f"{text} has two columns {column}")
    if "path" not in columns and not {"image1", "image2"} <= set(columns):
        raise InputError(f"{text} has no column path, and not both image1 and image2")
    return columns


_READERS = {".csv": _read_csv, ".parquet": _read_parquet}
MANIFEST_SUFFIXES = tuple(_READERS)


def list_rows(text: str) -> Iterator[Row]:
    """Yield a row for each clip of a folder tree, a pattern or a video."""
    yield from (Row(path=clip) for clip in _clips(text))


def with_flows(row: Row, place: str) -> Row:
    """Fill in how many flows the clip at `place` will have, if that is known."""
    from ..video.frames import count_frames

    frames = None if is_address(place) else count_frames(place)
    return row if frames is None else row._replace(flows=str(max(1, frames - 1)))


def _clips(text: str) -> Iterator[str]:
    from ..video.frames import clips_among, clips_below, clips_by_folder, clips_of_pattern

    path = local_path(text)
    if is_address(text):
        address = text.rstrip("/")
        files = RemoteFolder(address).sizes("")
        return clips_by_folder(f"{address}/{name.lstrip('/')}" for name in files)
    if path.is_dir():
        return clips_below(path.resolve())
    if not path.is_file():
        return clips_of_pattern(path.absolute())
    video = path.resolve()
    found = [*clips_among(str(video.parent), [video.name], "")]
    if not found:
        raise InputError(
            f"{video} is neither a manifest ({', '.join(MANIFEST_SUFFIXES)}) nor a video"
        )
    return iter(found)


def write_manifest(path: Path, rows: Iterable[Row]) -> int:
    """Write rows to a .csv or .parquet file, without empty columns; return their number."""
    listed = list(rows)
    names = [name for place, name in enumerate(Row._fields) if any(row[place] for row in listed)]
    columns = {name: [getattr(row, name) for row in listed] for name in names}
    write_files({path: encode_table(columns, path.suffix.lower())})
    return len(listed)
