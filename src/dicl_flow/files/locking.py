"""Locks on open files, which end with the process that holds them."""

import os
import sys
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
