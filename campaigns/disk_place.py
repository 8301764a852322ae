"""Where a command of the campaign `disks` writes, and the faults of that place."""

import ctypes
import errno
import gc
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from math import ceil
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, "gone": 0}
MOUNTS = ("small", "read-only")
LIMIT = "limit"
Files = dict[str, bytes]


class Place:
    """Where a command writes, and the faults of that place."""

    def __init__(self, folder: Path, shim: str) -> None:
        self.disk, self.inputs = folder / "disk", folder / "in"
        self.out = self.disk / "out"
        self._shim = ctypes.CDLL(shim) if shim else None
        self.calls = self.needed = self.largest = 0

    @contextmanager
    def faulty(self, fault: str, share: float) -> Iterator[None]:
        """Make the folder, on a tmpfs if the fault needs one."""
        self.disk.mkdir()
        size = max(4096, ceil(share * self.needed / 4096) * 4096)
        mounted = fault in MOUNTS
        if mounted:
            size = size if fault == "small" else 2 * self.needed
            command("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(self.disk))
        try:
            self.out.mkdir()
            self.arm("none", share)
            yield
        finally:
            if self._shim:
                self._shim.fault_disarm()
            if mounted:
                command("umount", "--lazy", str(self.disk))
            shutil.rmtree(self.disk)

    def arm(self, fault: str, share: float) -> None:
        """From now on, or from a later call on, the disk is faulty."""
        if fault == "read-only":
            command("mount", "-o", "remount,ro", str(self.disk))
        elif fault == LIMIT:
            setrlimit(RLIMIT_FSIZE, (int(share * self.largest), RLIM_INFINITY))
        elif self._shim:
            first = ceil(share * self.calls) if fault in ERRORS else 2**40
            folder = str(self.out).encode()
            self._shim.fault_arm(folder, ctypes.c_long(max(1, first)), ERRORS.get(fault, 0))

    def disarm(self, fault: str) -> None:
        """Let calls succeed; a small or read-only disk stays as it is."""
        if fault == LIMIT:
            setrlimit(RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
        elif self._shim:
            self._shim.fault_disarm()

    def lift(self, fault: str) -> None:
        """Repair the disk; a folder that has disappeared is made again, empty."""
        if fault in MOUNTS:
            command("mount", "-o", f"remount,rw,size={4 * self.needed}", str(self.disk))
        gone = self.out.with_name("out.gone")
        if gone.exists():
            shutil.rmtree(gone)
            shutil.rmtree(self.out, ignore_errors=True)
            self.out.mkdir()

    def seen(self) -> int:
        """Return the number of calls that change files."""
        return int(self._shim.fault_disarm()) if self._shim else 0

    def run(self, line: str) -> tuple[int | None, str]:
        """Run a command in this process; return its exit code (None: a traceback) and stderr."""
        from dicl_flow.cli import main as dicl_flow

        line = line.replace("{in}", str(self.inputs)).replace("{out}", str(self.out))
        told, code = StringIO(), None
        with redirect_stderr(told), redirect_stdout(StringIO()):
            try:
                dicl_flow(shlex.split(line))
            except SystemExit as error:
                code = int(error.code or 0)
            except BaseException as error:
                return None, f"{type(error).__name__}: {error}"
        return code or 0, told.getvalue()

    def files(self) -> Files:
        """Return all files with their contents."""
        found = (path for path in sorted(self.out.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.out)): path.read_bytes() for path in found}

    def open_files(self) -> list[str]:
        """Return the files below the folder that this process has open."""
        gc.collect()  # what an exception refers to is closed late
        targets = []
        for link in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # that of the folder itself
                targets.append(str(link.readlink()))
        return [target for target in targets if target.startswith(str(self.disk))]


def command(*words: str) -> None:
    """Run a program without the preloaded library."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    subprocess.run(words, check=True, env=environment)
