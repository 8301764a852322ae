"""How many files of the package have functions that run: for a flow, a video frame, a step.

    python benchmarks/files_run.py [flow] [video] [train] [--list]

Each command runs in its own process, on the CPU, and all its threads are watched. What runs while
modules are imported does not count. `--list` names the files. PYTHONPATH=OTHER/src counts another
version.
"""

import subprocess
import sys
import threading
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import dicl_flow

PACKAGE = str(Path(dicl_flow.__file__).parent) + "/"
STEP = ("augment.crop=[128,128]", "steps=1", "batch=2", "log_every=1", "optimizer.precision=fp32")
COMMANDS = {
    "flow": ["flow", "FRAMES/1.png", "FRAMES/2.png", "-o", "OUT/flow.flo"],
    "video": ["video", "FRAMES", "-o", "OUT/flows"],
    "train": [
        *("train", "rendered-0", "--data", "rendered=FRAMES", "-o", "OUT/run"),
        *(part for change in STEP for part in ("--set", change)),
    ],
}


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(COMMANDS), help=", ".join(COMMANDS))
    parser.add_argument("--list", action="store_true", help="name the files")
    options = parser.parse_args()
    for name in options.names:
        files = files_in_child(COMMANDS[name])
        print(f"{name}: {len(files)} files", flush=True)
        if options.list:
            print(*(f"  {file}" for file in files), sep="\n")


def files_in_child(command: list[str]) -> list[str]:
    """Files that have functions that run for a command, relative to the package."""
    with TemporaryDirectory() as folder:
        frames = Path(folder) / "frames"
        frames.mkdir()
        for number in (1, 2):
            picture = Path(PACKAGE) / f"demo/rendered_img{number}.png"
            (frames / f"{number}.png").write_bytes(picture.read_bytes())
        places = {"FRAMES": str(frames), "OUT": folder}
        for word, place in places.items():
            command = [part.replace(word, place) for part in command]
        child = [sys.executable, __file__, "--child", *command, "--device", "cpu", "--quiet"]
        done = subprocess.run(child, check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line.endswith(".py")]


def files_run(command: list[str]) -> set[str]:
    """Run a command in this process; return the files whose functions it ran."""
    from dicl_flow.cli import main as run_command

    found: dict[CodeType, bool] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and not found.get(code) and code.co_filename.startswith(PACKAGE):
            found[code] = not _is_import(frame)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run_command(command)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {code.co_filename.removeprefix(PACKAGE) for code, ran in found.items() if ran}


def _is_import(frame: FrameType | None) -> bool:
    """Whether a frame runs because a module of the package is being imported."""
    while frame is not None:
        inside = frame.f_code.co_filename.startswith(PACKAGE)
        if inside and frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(*sorted(files_run(sys.argv[2:])), sep="\n")
    else:
        main()
