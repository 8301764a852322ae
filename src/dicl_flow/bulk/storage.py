"""Reads inputs and writes outputs, here or in a store; equal tables are equal bytes."""

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeAlias

from ..errors import InputError, check_name
from ..files import read_bytes, temporaries, write_files

_CHUNK = 2**22  # bytes that are copied at a time
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_address(text: str) -> bool:
    """Whether a path is on another machine or in a store: s3://bucket/name."""
    return _ADDRESS.match(text) is not None and not text.lower().startswith("file://")


def local_path(text: str) -> Path:
    """The path of a file on this machine; file:// is left out."""
    return Path(text[7:] if text.lower().startswith("file://") else text)


class LocalFolder:
    """A folder on this machine or a drive; its files have names with slashes and appear whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, name: str) -> bytes:
        """Return the contents of a file; a missing one is an `OSError`."""
        return read_bytes(self.root / name)

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        return (self.root / name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        write_files({self._place(name): data})

    def publish(self, files: Mapping[str, Path]) -> None:
        """Move finished files of this machine to their names."""
        for name, path in files.items():
            path.replace(self._place(name))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it was written."""
        path = self._place(name)
        with temporaries() as make:
            temporary = make(path, data)
            try:
                os.link(temporary.path, path)  # a new name never replaces another
            except FileExistsError:
                return False
            except OSError:  # a drive without hard links
                if path.exists():
                    return False
                self.write(name, data)
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        """Return name and bytes of all files below a folder; empty if it does not exist."""
        return dict(self._walk(folder))

    def names(self) -> list[str]:
        """Return the names of the files directly in it."""
        return sorted(path.name for path in self.root.iterdir() if path.is_file())

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.root / name).unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _walk(self, folder: str) -> Iterator[tuple[str, int]]:
        try:
            entries = os.scandir(self.root / folder)
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue  # a temporary file
                if entry.is_dir():
                    yield from self._walk(f"{folder}/{entry.name}")
                else:
                    yield f"{folder}/{entry.name}", entry.stat().st_size


class _RemoteFolder:
    """The same for a folder of a store that pyarrow opens (s3, gs), or else fsspec."""

    def __init__(self, address: str) -> None:
        scheme, _, rest = address.partition("://")
        host, slash, path = rest.partition("/")
        self._system, root = _opened(f"{scheme}://{host}")
        self._root = f"{root}{slash}{path}".rstrip("/")

    def read(self, name: str) -> bytes:
        """Several threads may read one file."""
        from pyarrow.fs import PyFileSystem

        if isinstance(self._system, PyFileSystem):  # fsspec may give all threads one open file
            return bytes(self._system.handler.fs.cat_file(f"{self._root}/{name}"))
        with self.open(name) as file:
            return bytes(file.read())

    def open(self, name: str) -> IO[bytes]:
        stream: IO[bytes] = self._system.open_input_stream(f"{self._root}/{name}")
        return stream

    def write(self, name: str, data: bytes) -> None:
        with self._output(name) as stream:
            stream.write(data)

    def publish(self, files: Mapping[str, Path]) -> None:
        for name, path in files.items():
            with path.open("rb") as file, self._output(name) as stream:
                shutil.copyfileobj(file, stream, _CHUNK)
            path.unlink()

    def _output(self, name: str) -> Any:
        path = f"{self._root}/{name}"
        try:
            return self._system.open_output_stream(path)
        except FileNotFoundError:  # not a store of objects, whose folders need not exist
            self._system.create_dir(path.rpartition("/")[0], recursive=True)
            return self._system.open_output_stream(path)

    def create(self, name: str, data: bytes) -> bool:
        """Stores share no call for this: two runs in one second race."""
        try:
            self.read(name)
        except OSError:
            self.write(name, data)
            return True
        return False

    def sizes(self, folder: str) -> dict[str, int]:
        files = self._files(f"{self._root}/{folder}", recursive=True, allow_not_found=True)
        start = len(self._root.lstrip("/")) + 1  # fsspec drops a leading slash
        return {info.path.lstrip("/")[start:]: info.size for info in files}

    def names(self) -> list[str]:
        return sorted(info.base_name for info in self._files(self._root))

    def _files(self, path: str, **how: bool) -> list[Any]:
        from pyarrow.fs import FileSelector, FileType

        entries = self._system.get_file_info(FileSelector(path, **how))
        return [info for info in entries if info.type == FileType.File]

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.delete_file(f"{self._root}/{name}")


Storage: TypeAlias = LocalFolder | _RemoteFolder


def open_storage(text: str) -> Storage:
    """Open a folder by its path or address; a local one is created when it is written to."""
    return _RemoteFolder(text) if is_address(text) else LocalFolder(local_path(text))


@cache  # a client for each file would be slow
def _opened(address: str) -> tuple[Any, str]:
    """The file system of a store, and the path of the address in it."""
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
    except ImportError:
        raise InputError(f"{address} needs pyarrow: pip install 'dicl-flow[bulk]'") from None
    try:
        return FileSystem.from_uri(address)
    except (ArrowInvalid, NotImplementedError):  # not one of pyarrow's own
        import fsspec  # a dependency of torch

    try:
        system, root = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise InputError(f"{address} cannot be opened: {error}") from None
    return PyFileSystem(FSSpecHandler(system)), root.rstrip("/")


def read_input(text: str) -> bytes:
    """Return the contents of a local or remote file."""
    if not is_address(text):
        return read_bytes(local_path(text))
    folder, _, name = text.rpartition("/")
    with _naming(text):
        return _RemoteFolder(folder).read(name)


@contextmanager
def on_this_machine(text: str) -> Iterator[str]:
    """Yield a local path; a remote file or folder of frames is copied until the block ends."""
    if not is_address(text):
        yield str(local_path(text))
        return
    parent, _, name = text.rstrip("/").rpartition("/")
    with TemporaryDirectory(prefix="dicl-flow-") as temporary, _naming(text):
        remote, folder = _RemoteFolder(parent), Path(temporary)
        inside = [file for file in remote.sizes(name) if file.count("/") == name.count("/") + 1]
        if inside:
            (folder / name).mkdir()
        for file in inside or [name]:
            with remote.open(file) as stream, (folder / file).open("wb") as copy:
                shutil.copyfileobj(stream, copy, _CHUNK)
        yield str(folder / name)


@contextmanager
def _naming(address: str) -> Iterator[None]:
    """Shorten what a store's library says about an address that cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file: {address}") from None


def read_json(storage: Storage, name: str) -> Any:
    """Read a JSON file; a damaged one is an `InputError`."""
    try:
        return json.loads(storage.read(name))
    except ValueError:
        raise InputError(f"{name} is damaged") from None


def encode_json(value: object) -> bytes:
    """Return the bytes of a JSON file, the same for the same value."""
    return (json.dumps(value, indent=1) + "\n").encode()


def has_parquet() -> bool:
    """Whether Parquet can be written here."""
    return find_spec("pyarrow") is not None


def check_table(kind: str) -> None:
    """Refuse a format that cannot be written here."""
    check_name("`table`", kind, ("parquet", "csv"))
    if kind == "parquet" and not has_parquet():
        raise InputError("Parquet needs pyarrow: pip install 'dicl-flow[bulk]', or write .csv")


def encode_table(
    columns: Mapping[str, Sequence[Any]], kind: str, types: Mapping[str, type] | None = None
) -> bytes:
    """Return the bytes of a table; None is an empty entry. `types` are those of Parquet columns."""
    check_table(kind)
    if kind == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue().encode("utf-8", "surrogateescape")
    import pyarrow as arrow
    from pyarrow import parquet

    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(name, kinds[(types or {}).get(name, str)]) for name in columns])
    table = arrow.table({name: [*map(_utf8, columns[name])] for name in columns}, schema)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _utf8(entry: Any) -> Any:
    """Replace what is not UTF-8, as names of files may be: Parquet has nothing else."""
    if not isinstance(entry, str):
        return entry
    return entry.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def decode_table(data: bytes, kind: str, types: Mapping[str, type]) -> list[dict[str, Any]]:
    """Return the rows that `encode_table` has written, with values of these types, or None."""
    if kind == "parquet":
        from pyarrow import BufferReader, parquet

        return list(parquet.read_table(BufferReader(data)).to_pylist())
    rows = csv.DictReader(io.StringIO(data.decode(), newline=""))
    return [{name: _typed(row[name], types[name]) for name in row} for row in rows]


def _typed(entry: str, kind: type) -> Any:
    if entry == "":
        return "" if kind is str else None
    return entry == "True" if kind is bool else kind(entry)
