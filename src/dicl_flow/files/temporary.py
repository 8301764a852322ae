"""Hidden files that get their names when they are complete."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from .locking import has_name, lock

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_OLD = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
_LOCKED = 100  # files at a time: a process may have about 1000 open


class Temporary:
    """A new file .NAME.part0 next to `path`, locked as long as its process lives.

    One that is not locked was left by a killed run: whoever writes `path` next removes it. Where
    files cannot be locked (Windows, some network drives), it stays.
    """

    def __init__(self, path: Path) -> None:
        self.target = path
        try:
            self.path, self._handle = _create(path)
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror}") from None

    def write(self, data: bytes, *, durable: bool = False) -> None:
        """Write all of the file; `durable`: to the disk."""
        try:
            with os.fdopen(os.dup(self._handle), "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise OSError(f"cannot write {self.target}: {error.strerror}") from None

    def rename(self) -> None:
        """Give the file its name."""
        if sys.platform == "win32":
            self.unlock()  # an open file cannot be renamed there
        self.path.replace(self.target)

    def remove(self) -> None:
        """Remove the file, unless it has its name."""
        if sys.platform == "win32":
            self.unlock()
        self.path.unlink(missing_ok=True)
        self.unlock()

    def unlock(self) -> None:
        """Let another run that writes `path` take the file for one that was left."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


@contextmanager
def temporaries() -> Iterator[Callable[..., Temporary]]:
    """Yield a function that writes temporary files; those that are not renamed are removed."""
    files: list[Temporary] = []

    def make(path: Path, data: bytes, *, durable: bool = False) -> Temporary:
        files.append(Temporary(path))
        files[-1].write(data, durable=durable)
        if len(files) > _LOCKED:
            files[-1 - _LOCKED].unlock()
        return files[-1]

    try:
        yield make
    finally:
        for file in files:
            file.remove()


def _create(path: Path) -> tuple[Path, int]:
    for number in count():
        name = path.with_name(f".{path.name}.part{number}")
        _remove_if_left(name)
        try:
            handle = os.open(name, _NEW, 0o666)
        except FileExistsError:  # of a run that is alive
            continue
        locked = _lock(handle)
        if locked is None or (locked and has_name(handle, name)):
            return name, handle
        os.close(handle)  # another run took it for one that was left
    raise AssertionError


def _remove_if_left(name: Path) -> None:
    try:
        handle = os.open(name, _OLD)
    except OSError:  # usually there is none
        return
    try:
        if _lock(handle) and has_name(handle, name):
            name.unlink()
    finally:
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """See `lock`; not on Windows, where a locked file cannot be renamed."""
    return None if sys.platform == "win32" else lock(handle)
