"""What a decoder is denied: memory, time, files, programs, the network, most system calls.

The template, from which decoders are forked, leaves the network and the file tree before it has
read anything. A decoder closes the rest: limits of the system, and a filter of system calls. Each
step is refused on some machines; what stays open is returned.
"""

import ctypes
import errno
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

with suppress(ImportError):  # not on Windows
    import resource

FENCED = ("memory", "processor time", "files", "programs", "network", "system calls")
"""What a fence can keep from a decoder."""
_NEW_NET, _NEW_USER, _NEW_MOUNT, _NEW_IPC = 0x40000000, 0x10000000, 0x00020000, 0x08000000
_PARENT_DEATH, _NO_NEW_PRIVILEGES, _SECCOMP, _FILTER, _KILL = 1, 38, 22, 2, 9


class Limits(NamedTuple):
    """What one decoder may use."""

    memory: int
    """Bytes, beyond those of the template."""
    seconds: int
    """Of processor time, for one answer."""
    files: int = 16
    """Open at a time."""


def _library() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_LIBRARY = _library()


def leave_the_machine() -> dict[str, bool]:
    """Leave the network and the file tree, for this process and its children; say what worked.

    Imports must be done: no file can be opened by its name afterwards.
    """
    if _LIBRARY is None:
        return {"network": False, "files": False}
    if platform.machine() in _MACHINES:
        _filled(platform.machine())
    # in a namespace of users, anyone may leave the others
    inside = _LIBRARY.unshare(_NEW_USER | _NEW_NET | _NEW_MOUNT | _NEW_IPC) == 0
    network = inside or _LIBRARY.unshare(_NEW_NET) == 0
    return {"network": network, "files": _leave_the_files()}


def _leave_the_files() -> bool:
    """Make an empty folder that exists no more the root of all paths."""
    with suppress(OSError):  # no folder can be made, or none can become the root
        folder = Path(tempfile.mkdtemp(prefix="dicl-flow-fence-"))
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        folder.rmdir()
        os.fchdir(place)
        os.chroot(".")
        return True
    return False


def address_space() -> int:
    """Return the bytes of addresses that this process has; 0 where the system does not say it."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def seal(limits: Limits, used: int, left: dict[str, bool]) -> dict[str, str]:
    """Close this process for good; return what is still open, and why.

    `used` is the address space before, `left` the result of `leave_the_machine`.
    """
    nothing_open = _limit(limits, used)
    filtered = "" if _LIBRARY is None else _filter_calls(_LIBRARY)
    refused = f"the filter of system calls was refused ({filtered})" if filtered else ""
    if _LIBRARY is None:
        refused = "only Linux can filter system calls"
    if refused:
        nothing_open |= dict.fromkeys(("programs", "system calls"), refused)
        for name in ("network", "files"):
            if not left[name]:
                nothing_open[name] = f"{refused}, and so were namespaces"
    return {name: nothing_open[name] for name in FENCED if name in nothing_open}


def _limit(limits: Limits, used: int) -> dict[str, str]:
    wanted = {
        "memory": (resource.RLIMIT_AS, used + limits.memory),
        "processor time": (resource.RLIMIT_CPU, limits.seconds),
        "files": (resource.RLIMIT_FSIZE, 0),
        "open files": (resource.RLIMIT_NOFILE, limits.files),
        "core files": (resource.RLIMIT_CORE, 0),
    }
    refused = {}
    for name, (kind, value) in wanted.items():
        # processor time is limited anew for each answer, by the parent
        most = resource.getrlimit(kind)[1] if kind == resource.RLIMIT_CPU else value
        try:
            resource.setrlimit(kind, (value, most))
        except (OSError, ValueError) as error:
            refused[name] = f"a limit was refused ({error})"
    if sys.platform == "darwin":
        refused["memory"] = "macOS does not limit it"
    return refused


# --- the filter of system calls -------------------------------------------------------------------


def _numbers(text: str) -> dict[str, int]:
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


_X86 = _numbers("""
    read 0 write 1 open 2 close 3 fstat 5 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12
    rt_sigaction 13 rt_sigprocmask 14 rt_sigreturn 15 pread64 17 readv 19 writev 20
    sched_yield 24 mremap 25 madvise 28 nanosleep 35 getpid 39 socket 41 connect 42 sendto 44
    recvfrom 45 sendmsg 46 recvmsg 47 bind 49 listen 50 clone 56 fork 57 vfork 58 execve 59
    exit 60 kill 62 gettimeofday 96 getrusage 98 sysinfo 99 times 100 ptrace 101 getuid 102
    sigaltstack 131 gettid 186 tkill 200 time 201 futex 202 sched_getaffinity 204
    clock_gettime 228 clock_getres 229 clock_nanosleep 230 exit_group 231 openat 257 ppoll 271
    set_robust_list 273 getcpu 309 process_vm_readv 310 process_vm_writev 311 getrandom 318
    execveat 322 membarrier 324 rseq 334 clone3 435 openat2 437
""")
_ARM = _numbers("""
    openat 56 close 57 lseek 62 read 63 write 64 readv 65 writev 66 pread64 67 ppoll 73 fstat 80
    exit 93 exit_group 94 futex 98 set_robust_list 99 nanosleep 101 clock_gettime 113
    clock_getres 114 clock_nanosleep 115 ptrace 117 sched_getaffinity 123 sched_yield 124
    kill 129 tkill 130 sigaltstack 132 rt_sigaction 134 rt_sigprocmask 135 rt_sigreturn 139
    times 153 getrusage 165 getcpu 168 gettimeofday 169 getpid 172 getuid 174 gettid 178
    sysinfo 179 socket 198 bind 200 listen 201 connect 203 sendto 206 recvfrom 207 sendmsg 211
    recvmsg 212 brk 214 munmap 215 mremap 216 clone 220 execve 221 mmap 222 mprotect 226
    madvise 233 process_vm_readv 270 process_vm_writev 271 getrandom 278 execveat 281
    membarrier 283 rseq 293 clone3 435 openat2 437
""")
_MACHINES = {"x86_64": (0xC000003E, _X86), "aarch64": (0xC00000B7, _ARM)}
"""By machine: its number in the filter, and those of its system calls."""
_ENDS = ("socket", "connect", "bind", "listen", "fork", "vfork", "execve", "execveat", "ptrace")
_ENDS += ("kill", "tkill", "process_vm_readv", "process_vm_writev")
"""Calls that no decoder makes: they end it."""
_NO_FILE = ("open", "openat", "openat2")
_WITH_RULES = ("clone", "clone3", "mmap", "mprotect")
_LOAD, _EQUALS, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # places in what a filter is given
_ALLOW, _END, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_THREAD, _EXECUTABLE = 0x10000, 4

Instruction = tuple[int, int, int, int]
"""Code, steps to skip if true and if false, and a number."""


def program(machine: str) -> list[Instruction]:
    """Return the filter for a machine; what it does not list is refused.

    Threads are allowed, but no processes; memory, but none to execute; no signals.
    """
    architecture, numbers = _MACHINES[machine]
    made = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUALS, 1, 0, architecture),
        (_RETURN, 0, 0, _END),
        (_LOAD, 0, 0, _NUMBER),
    ]
    special = {*_ENDS, *_NO_FILE, *_WITH_RULES}
    made += _for_calls((n for name, n in numbers.items() if name not in special), _ALLOW)
    made += _for_calls((numbers[name] for name in _ENDS if name in numbers), _END)
    made += _for_calls((numbers[n] for n in _NO_FILE if n in numbers), _REFUSE | errno.EACCES)
    made += _for_calls([numbers["clone3"]], _REFUSE | errno.ENOSYS)  # clone is used instead
    made += _by_argument(numbers["clone"], 0, (_ANY_BIT, _THREAD), _ALLOW, _END)
    for name in ("mmap", "mprotect"):
        refused = _REFUSE | errno.EPERM
        made += _by_argument(numbers[name], 2, (_ANY_BIT, _EXECUTABLE), refused, _ALLOW)
    return [*made, (_RETURN, 0, 0, _REFUSE | errno.EPERM)]


def _for_calls(numbers: Iterable[int], action: int) -> list[Instruction]:
    made: list[Instruction] = []
    for number in numbers:
        made += [(_EQUALS, 0, 1, number), (_RETURN, 0, 0, action)]
    return made


def _by_argument(
    call: int, place: int, test: tuple[int, int], then: int, otherwise: int
) -> list[Instruction]:
    """Decide by the lower half of an argument."""
    code, number = test
    return [
        (_EQUALS, 0, 4, call),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * place),
        (code, 0, 1, number),
        (_RETURN, 0, 0, then),
        (_RETURN, 0, 0, otherwise),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("true", ctypes.c_uint8),
        ("false", ctypes.c_uint8),
        ("number", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step))]


@cache
def _filled(machine: str) -> _Program:
    """The filter as the system takes it; the template makes it once for all decoders."""
    made = program(machine)
    return _Program(len(made), (_Step * len(made))(*(_Step(*step) for step in made)))


def _filter_calls(library: ctypes.CDLL) -> str:
    """Filter the system calls of this process; return why that was refused, "" if it was not."""
    library.prctl(_PARENT_DEATH, _KILL, 0, 0, 0)
    if platform.machine() not in _MACHINES:
        return f"not written for {platform.machine()}"
    filled = _filled(platform.machine())
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.prctl(
        _SECCOMP, _FILTER, ctypes.byref(filled), 0, 0
    ):
        return os.strerror(ctypes.get_errno())
    return ""
