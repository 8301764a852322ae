"""A segment while it is computed: its folder of parts, locked against other processes."""

import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from platform import node
from tempfile import mkdtemp
from typing import Any

from ..files import FolderLock
from .segments import marker_name
from .storage import LocalFolder, Storage, write_json

PARTS = ".parts"


class Claim:
    """A folder for the unfinished files of a segment; not `held` if another process computes it.

    Next to the output if that is a local folder, so that files can be renamed; then the segment is
    locked until the claim is released or the process ends. A store has no locks, and some network
    drives have none: there, two processes may compute the same segment, and write the same files.
    """

    def __init__(self, storage: Storage, segment: str) -> None:
        self.segment, self._storage = segment, storage
        self._lock: FolderLock | None = None
        self.held = True
        if not isinstance(storage, LocalFolder):
            self.folder = Path(mkdtemp(prefix="dicl-flow-"))
            return
        place = storage.root / PARTS / segment
        self.folder = place / f"{node()}-{os.getpid()}"
        self._lock = FolderLock(place)
        self.held = self._lock.acquire()
        if self.held:
            try:
                self._make_folder(storage.root / PARTS)
            except BaseException:
                self._lock.remove()
                raise

    def _make_folder(self, parts: Path) -> None:
        if _locks_work(parts):
            for left in (path for path in self.folder.parent.iterdir() if path.is_dir()):
                shutil.rmtree(left)  # by a killed process
        self.folder.mkdir(exist_ok=True)

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
        self.held = False
        try:
            with suppress(FileNotFoundError):  # the output has disappeared
                shutil.rmtree(self.folder)
        finally:
            if self._lock is not None:
                self._lock.remove()


@cache
def _locks_work(parts: Path) -> bool:
    """Whether a lock here keeps others out; if in doubt, not."""
    first, second = (FolderLock(parts / f"try-{node()}-{os.getpid()}") for _ in range(2))
    first.acquire()
    works = not second.acquire()
    second.release()
    first.remove()
    return works


def sweep(storage: Storage) -> None:
    """Remove what processes that were killed have left, except where another one computes."""
    if not isinstance(storage, LocalFolder):
        return
    parts = storage.root / PARTS
    if parts.is_dir() and _locks_work(parts):
        for folder in parts.iterdir():
            Claim(storage, folder.name).release()
    with suppress(OSError):  # another run uses it, or has removed it
        parts.rmdir()
