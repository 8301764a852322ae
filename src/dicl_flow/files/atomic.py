"""Files appear whole or not at all."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError

_FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk, or what one user may have of it


def write_files(contents: Mapping[Path, bytes], *, durable: bool = False) -> None:
    """Write all files or none: each under a temporary name first, then all are renamed.

    `durable`: also a power cut leaves either the old contents or the new ones. That takes about
    10 ms a file (ext4 on an SSD), more than a small file itself.
    """
    for path in contents:
        check_writable(path)
    temporary: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            temporary[path] = _write_temporary(path, data, durable=durable)
        for path in contents:
            temporary[path].replace(path)
        for folder in {path.parent for path in contents} if durable else ():
            _sync_folder(folder)
    finally:
        for name in temporary.values():
            name.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes `path` if all goes well: for what memory cannot hold."""
    check_writable(path)
    temporary = _write_temporary(path, b"")
    try:
        with naming(path):
            yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let a disk that is full say which file it has no room for; the system does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(f"cannot write {path}: {error.strerror}") from None


def check_writable(path: str | Path) -> None:
    """Refuse, before any work is done, a path that could not be written in the end."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give a file name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: the folder {path.parent} is not writable")


def check_folder(folder: Path) -> None:
    """Refuse, before any work is done, a folder that could not be made or written into."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"cannot write into {folder}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"cannot write into {folder}: {nearest} is not writable")


def _write_temporary(path: Path, data: bytes, *, durable: bool = False) -> Path:
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())  # mkstemp hides files from other users
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(f"cannot write {path}: {error.strerror}") from None
        raise
    return Path(name)


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can (Windows cannot)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
