"""Every command that writes, on a disk that fills up, fails, disappears or cannot be written.

    python -m campaigns.disks --count 8 --seed 1 --only video.npy,train -o report.json

Each command runs in a worker with one fault at a random moment: a call of the file system fails
with EIO, ENOSPC or EROFS, as do all later ones (faulty_calls.c, preloaded; needs a compiler), the
folder disappears, the folder is a tmpfs that is too small or mounted read-only (needs root), or
files may not grow beyond a limit (needs nothing).
Required are exit code 2, one sentence that names a file or folder of the output, whole files, old
or new, and no temporary file. Then the fault is lifted and the command repeated: the result must
equal that of an undisturbed run.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from .disk_place import ERRORS, LIMIT, MOUNTS, Files, Place, command
from .disk_writers import WRITERS, DiskWriter, make_inputs
from .report import Options, Part, main
from .workers import Attempt, attempts

SHIM = Path(__file__).with_name("faulty_calls.c")
_OLD = b"old"
_SECONDS = 120.0


def run(options: Options) -> dict[str, Part]:
    """Try each writer with each fault."""
    with tempfile.TemporaryDirectory() as folder:
        shim = _compiled(Path(folder))
        mounts = MOUNTS if _can_mount(Path(folder)) else ()
        faults = (*(ERRORS if shim else ()), *mounts, LIMIT)
        make_inputs(Path(folder) / "in")
        return {
            name: _run(name, options, faults, folder, shim)
            for name in WRITERS
            if options.wants(name)
        }


def _run(name: str, options: Options, faults: tuple[str, ...], folder: str, shim: str) -> Part:
    part = Part()
    moments = min(options.count or 8, WRITERS[name].moments or 99)
    cases = [(fault, moment) for fault in faults for moment in range(moments)]
    cases = [(fault, moment) for fault, moment in cases if fault != "read-only" or moment == 0]
    arguments = (name, options, cases, folder, shim)
    os.environ["LD_PRELOAD"] = shim
    try:
        for number, attempt in attempts(prepare, arguments, range(len(cases)), _SECONDS):
            if attempt.failure:
                part.failures.append(f"{cases[number]}: {attempt.failure}")
                print(f"{name} {part.failures[-1]}", flush=True)
            else:
                part.outcomes[f"{cases[number][0]}: {attempt.outcome}"] += 1
    finally:
        del os.environ["LD_PRELOAD"]
    print(f"{name}: {part.tried:,} tried, {len(part.failures):,} failed", flush=True)
    return part


def prepare(
    name: str, options: Options, cases: list[tuple[str, int]], folder: str, shim: str
) -> Callable[[int], Attempt]:
    """Run the command undisturbed; return what a worker does for each case."""
    writer, place = WRITERS[name], Place(Path(folder), shim)
    with place.faulty("none", 1.0):
        code, text = place.run(writer.command)
        whole, place.calls = place.files(), place.seen()
    if code or not whole or (shim and not place.calls):
        raise RuntimeError(f"{name} does not work undisturbed: {code} {text}")
    place.needed = 2 * sum(map(len, whole.values())) + 16384
    place.largest = max(map(len, whole.values()))

    def attempt(number: int) -> Attempt:
        fault, moment = cases[number]
        moments = 1 + max(case[1] for case in cases if case[0] == fault)
        share = (moment + options.dice(name, *cases[number]).random()) / moments
        with place.faulty(fault, share):
            for old in writer.before:
                (place.out / old).write_bytes(_OLD)
            place.arm(fault, share)
            code, text = place.run(writer.command)
            place.disarm(fault)
            failure = _wrong(writer, place, whole, code, text, fault)
            if not failure:
                place.lift(fault)
                failure = _wrong_again(writer, place, whole)
        return Attempt("refused" if code else "unharmed", failure)

    return attempt


def _wrong(
    writer: DiskWriter, place: Place, whole: Files, code: int | None, text: str, fault: str
) -> str:
    """What is wrong after a fault; empty if nothing is."""
    if code not in (0, 2):
        return f"exit code {code}: {text[-300:]}"
    lines = text.strip().splitlines()
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("error: ")):
        return f"not one sentence: {text[-300:]!r}"
    if code == 2 and str(place.out) not in text:
        return f"names no file: {text[-300:]!r}"
    if place.open_files():
        return f"left open: {place.open_files()}"
    if fault == "gone" and not place.out.exists():
        return "" if code else "succeeds without its folder"
    found = place.files()
    if code == 0:
        return _difference(writer, found, whole)
    return _left(writer, found, whole)


def _left(writer: DiskWriter, found: Files, whole: Files) -> str:
    for name in writer.before:
        if found.get(name, _OLD) not in (_OLD, whole[name]):
            return f"{name} is neither the old one nor the new one"
    for name, content in found.items():
        hidden = any(part.startswith(".") for part in Path(name).parts)
        if name in writer.before or (writer.may_leave(name) and not hidden):
            continue
        if hidden and name.endswith(".lock"):
            continue
        if name not in whole or (writer.is_exact(name) and content != whole[name]):
            return f"leaves {name}"
    return ""


def _wrong_again(writer: DiskWriter, place: Place, whole: Files) -> str:
    """What is wrong when the command is repeated on a disk without faults."""
    again = writer.again if _can_resume(place) else ""
    code, text = place.run(f"{writer.command} {again}")
    if code:
        return f"when repeated, exit code {code}: {text[-300:]}"
    difference = _difference(writer, place.files(), whole)
    return f"when repeated, {difference}" if difference else ""


def _can_resume(place: Place) -> bool:
    return (place.out / "run/last.ckpt").exists()


def _difference(writer: DiskWriter, found: Files, whole: Files) -> str:
    names = {name for name in found.keys() ^ whole.keys() if writer.is_exact(name)}
    if names:
        return f"only one run writes {sorted(names)[:3]}"
    same = (name for name in found.keys() & whole.keys() if writer.is_exact(name))
    different = [name for name in same if found[name] != whole[name]]
    return f"{different[0]} differs from that of an undisturbed run" if different else ""


def _compiled(folder: Path) -> str:
    """Compile the library that lets calls fail; empty without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return ""
    library = str(folder / "faulty_calls.so")
    command(compiler, "-shared", "-fPIC", "-o", library, str(SHIM), "-ldl")
    return library


def _can_mount(folder: Path) -> bool:
    place = folder / "mounted"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4096", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        return False
    command("umount", str(place))
    return True


if __name__ == "__main__":
    main("disks", __doc__, run, count=8)
