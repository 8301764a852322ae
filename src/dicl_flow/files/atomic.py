"""Writes files atomically: a reader sees the old contents or the new ones, never a part."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError
from .temporary import temporaries

_FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk, or the quota of the user


def write_files(contents: Mapping[Path, bytes], *, durable: bool = False) -> None:
    """Write all files or none: each under a temporary name first, then all are renamed.

    With `durable`, each file also survives a power cut, with the old contents or the new ones.
    That takes about 10 ms per file (ext4), more than writing a small file.
    """
    for path in contents:
        check_writable(path)
    with temporaries() as make:
        files = [make(path, data, durable=durable) for path, data in contents.items()]
        for file in files:
            file.rename()
        for folder in {path.parent for path in contents} if durable else ():
            _sync_folder(folder)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes `path` on success: for data larger than memory."""
    check_writable(path)
    with temporaries() as make:
        file = make(path, b"")
        with naming(path):
            yield file.path
        file.rename()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the system that name none, and in those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.strerror is None or (error.filename and error.errno not in _FULL):
            raise
        raise OSError(f"cannot write {path}: {error.strerror}") from None


def check_writable(path: str | Path) -> None:
    """Refuse, before any work is done, a path that cannot be written."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give a file name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: the folder {path.parent} is not writable")


def check_folder(folder: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be created or written to."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"cannot write to {folder}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"cannot write to {folder}: {nearest} is not writable")


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, if the system can (Windows cannot)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
