"""Locks on files and folders, which end with the process that holds them."""

import os
import sys
from contextlib import suppress
from pathlib import Path


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


def has_name(handle: int, path: Path) -> bool:
    """Whether the open file is the one at `path`: another process may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


_NAME = ".lock"


class FolderLock:
    """Locks a folder, which is created if missing, until it is released or the process ends.

    The operating system holds the lock, not the file: a killed run leaves no lock.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
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
            if not has_name(file, self.path):  # a run that ended has removed it
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
