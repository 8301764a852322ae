"""A segment while it is computed: its folder of parts, locked against other processes."""

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ..video.lock import FolderLock
from .segments import marker_name
from .storage import LocalFolder, Storage, write_json

PARTS = ".parts"


class Claim:
    """A folder for the unfinished files of a segment; false if another process computes it.

    Next to the output if that is a local folder, so that files can be renamed; then it is locked
    until the claim is released or the process ends. A store has no locks: there, two processes
    may compute the same segment, and write the same files.
    """

    def __init__(self, storage: Storage, segment: str) -> None:
        self.segment, self._storage = segment, storage
        self._lock: FolderLock | None = None
        self.held = True
        if isinstance(storage, LocalFolder):
            self.folder = storage.root / PARTS / segment
            self._lock = FolderLock(self.folder)
            self.held = self._lock.acquire()
        else:
            self.folder = Path(mkdtemp(prefix="dicl-flow-"))
        if self.held:
            self._clear()  # what a killed process has left

    def publish(self, files: dict[str, Path], marker: dict[str, Any]) -> None:
        """Move the files to their places, then write the marker, and release the claim."""
        self._storage.remove(marker_name(self.segment))  # that of damaged files
        self._storage.publish(files)
        write_json(self._storage, marker_name(self.segment), marker)
        self.release()

    def release(self) -> None:
        """Remove the folder of parts, and let others compute the segment."""
        if not self.held:
            return
        self._clear()
        self.held = False
        if self._lock is not None:
            self._lock.remove()
        else:
            shutil.rmtree(self.folder)

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if self._lock is None or path != self._lock.path:
                path.unlink()


def sweep(storage: Storage) -> None:
    """Remove what processes that were killed have left, except where another one computes."""
    if not isinstance(storage, LocalFolder):
        return
    parts = storage.root / PARTS
    for folder in [*parts.iterdir()] if parts.is_dir() else ():
        Claim(storage, folder.name).release()
    with suppress(OSError):  # another run uses it, or has removed it
        parts.rmdir()
