"""A lock on a folder, so that only one run at a time uses it."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from ..files import has_name, lock

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
