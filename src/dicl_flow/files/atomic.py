"""Writes files whole or not at all, and locks folders until the process ends."""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from ..errors import InputError

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_OLD = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
_LOCKED = 100  # files at a time: a process may have about 1000 open
_FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk, or the quota of the user


def lock(handle: int) -> bool | None:
    """Lock an open file; false if another has locked it, None if files cannot be locked here."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
    else:
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # some network drives
            return None
    return True


def _has_name(handle: int, path: Path) -> bool:
    """Whether the open file is the one at `path`: another process may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


class FolderLock:
    """Locks a folder, created if missing; the system holds the lock: a killed run leaves none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._file: int | None = None

    def acquire(self) -> bool:
        """Lock the folder; return false if another run holds it."""
        while self._file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # another run has just ended and removed the folder
                continue
            if lock(file) is False:  # where there are no locks, all may use it
                os.close(file)
                return False
            self._file = file
            if not _has_name(file, self.path):  # a run that ended has removed it
                self.release()
        return True

    def release(self) -> None:
        """Unlock the folder."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Unlock the folder, and remove it if it is empty."""
        if self._file is None:
            return
        if sys.platform == "win32":  # an open file cannot be removed there
            self.release()
        with suppress(OSError):  # another run may create both again from here on
            self.path.unlink()
            self.path.parent.rmdir()
        self.release()


class _Temporary:
    """A new file .NAME.part0 next to `path`, locked as long as its process lives.

    One that is not locked was left by a killed run: whoever writes `path` next removes it. Where
    files cannot be locked (Windows, some network drives), it stays.
    """

    def __init__(self, path: Path) -> None:
        self.target = path
        self._made = [folder for folder in path.parents if not folder.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.path, self._handle = _create(path)
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror}") from None

    def write(self, data: bytes, *, durable: bool = False) -> None:
        with naming(self.target), os.fdopen(os.dup(self._handle), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())

    def rename(self) -> None:
        if sys.platform == "win32":
            self.unlock()  # an open file cannot be renamed there
        self.path.replace(self.target)

    def remove(self) -> None:
        if sys.platform == "win32":
            self.unlock()
        self.path.unlink(missing_ok=True)
        self.unlock()
        with suppress(OSError):  # unless a file is there now
            for folder in self._made:
                folder.rmdir()

    def unlock(self) -> None:
        """Let another run that writes `path` take the file for one that was left."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _create(path: Path) -> tuple[Path, int]:
    for number in count():
        name = path.with_name(f".{path.name}.part{number}")
        _remove_if_left(name)
        try:
            handle = os.open(name, _NEW, 0o666)
        except FileExistsError:  # of a run that is alive
            continue
        locked = _lock_temporary(handle)
        if locked is None or (locked and _has_name(handle, name)):
            return name, handle
        os.close(handle)  # another run took it for one that was left
    raise AssertionError


def _remove_if_left(name: Path) -> None:
    try:
        handle = os.open(name, _OLD)
    except OSError:  # usually there is none
        return
    try:
        if _lock_temporary(handle) and _has_name(handle, name):
            name.unlink()
    finally:
        os.close(handle)


def _lock_temporary(handle: int) -> bool | None:
    return None if sys.platform == "win32" else lock(handle)  # a locked one cannot be renamed there


@contextmanager
def temporaries() -> Iterator[Callable[..., _Temporary]]:
    """Yield a function that writes temporary files; those that are not renamed are removed."""
    files: list[_Temporary] = []

    def make(path: Path, data: bytes, *, durable: bool = False) -> _Temporary:
        files.append(_Temporary(path))
        files[-1].write(data, durable=durable)
        if len(files) > _LOCKED:
            files[-1 - _LOCKED].unlock()
        return files[-1]

    try:
        yield make
    finally:
        for file in reversed(files):  # the first has made the folders that others use
            file.remove()


def write_files(contents: Mapping[Path, bytes], *, durable: bool = False) -> None:
    """Write all files or none: each under a temporary name first, then all are renamed.

    Missing folders are created.
    With `durable`, each also survives a power cut, which takes about 10 ms per file (ext4).
    """
    for path in contents:
        check_writable(path)
    with temporaries() as make:
        files = [make(path, data, durable=durable) for path, data in contents.items()]
        for file in files:
            file.rename()
        if durable and hasattr(os, "O_DIRECTORY"):  # Windows cannot sync the names in a folder
            for folder in {path.parent for path in contents}:
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)


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
    """Refuse, before any work is done, a path that cannot be written; folders may be missing."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give a file name")
    _check_creatable(path.parent, f"cannot write {path}")


def check_folder(folder: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be created or written to."""
    _check_creatable(folder, f"cannot write to {folder}")


def _check_creatable(folder: Path, problem: str) -> None:
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise NotADirectoryError(f"{problem}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{problem}: the folder {nearest} is not writable")
