"""Where inputs are read and outputs written: this machine, or what pyarrow or fsspec opens."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from ..errors import InputError
from ..files import read_bytes, temporaries, write_files

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_address(text: str) -> bool:
    """Whether a path is on another machine or in a store: s3://bucket/name."""
    return _ADDRESS.match(text) is not None and not text.lower().startswith("file://")


def local_path(text: str) -> Path:
    """The path of a file on this machine; file:// is left out."""
    return Path(text[7:] if text.lower().startswith("file://") else text)


class Storage(Protocol):
    """A folder of files, addressed by names with slashes; a file appears whole or not at all."""

    def read(self, name: str) -> bytes:
        """Return the contents of a file; a missing one is an `OSError`."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""

    def publish(self, files: Mapping[str, Path]) -> None:
        """Move finished files of this machine to their names."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it was written."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return name and bytes of all files below a folder; empty if it does not exist."""

    def names(self) -> list[str]:
        """Return the names of the files directly in it."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""


def open_storage(text: str) -> Storage:
    """Open a folder by its path or address; a local one is created when it is written to."""
    if is_address(text):
        from .stores import RemoteFolder

        return RemoteFolder(text)
    return LocalFolder(local_path(text))


class LocalFolder:
    """A folder on this machine, or on a drive that it mounts."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, name: str) -> bytes:
        """See `Storage`."""
        return read_bytes(self.root / name)

    def open(self, name: str) -> IO[bytes]:
        """See `Storage`."""
        return (self.root / name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """See `Storage`."""
        write_files({self._place(name): data})

    def publish(self, files: Mapping[str, Path]) -> None:
        """See `Storage`."""
        for name, path in files.items():
            path.replace(self._place(name))

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage`. A hard link, because a new name never replaces another."""
        path = self._place(name)
        with temporaries() as make:
            temporary = make(path, data)
            try:
                os.link(temporary.path, path)
            except FileExistsError:
                return False
            except OSError:  # a drive without hard links
                if path.exists():
                    return False
                self.write(name, data)
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        """See `Storage`."""
        return dict(self._walk(folder))

    def names(self) -> list[str]:
        """See `Storage`."""
        return sorted(path.name for path in self.root.iterdir() if path.is_file())

    def remove(self, name: str) -> None:
        """See `Storage`."""
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


def read_json(storage: Storage, name: str) -> Any:
    """Read a JSON file; a damaged one is an `InputError`."""
    try:
        return json.loads(storage.read(name))
    except ValueError:
        raise InputError(f"{name} is damaged") from None


def write_json(storage: Storage, name: str, value: object) -> None:
    """Write a JSON file, the same value always as the same bytes."""
    storage.write(name, (json.dumps(value, indent=1) + "\n").encode())
