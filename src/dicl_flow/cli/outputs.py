"""Checks outputs before any work is done."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from ..data import FlowPair


def check_outputs(
    files: Sequence[Path | None] = (),
    *,
    flows: Sequence[Path | None] = (),
    pictures: Sequence[Path | None] = (),
    folders: Sequence[Path | None] = (),
    inputs: Iterable[Path | str | None] = (),
) -> list[Path]:
    """Return the files that were asked for; refuse those that cannot or must not be written.

    Flow files and pictures need a known extension, and every file an existing folder. No output
    may be an input, and no two outputs the same file, links included.
    """
    from ..files import check_flow_name, check_folder, check_image_name, check_writable

    wanted = [path for path in (*files, *flows, *pictures) if path is not None]
    wanted_folders = [path for path in folders if path is not None]
    for path in wanted:
        check_writable(path)
    for path in wanted_folders:
        check_folder(path)
    for path in filter(None, flows):
        check_flow_name(path)
    for path in filter(None, pictures):
        check_image_name(path)
    refuse_duplicates([*wanted, *wanted_folders])
    refuse_inputs([*wanted, *wanted_folders], inputs)
    return wanted


def check_standard_output(file_format: str | None, *, as_json: bool) -> str:
    """Return the extension of a flow on the standard output, which nothing else may use."""
    from .input_files import suffix_of

    if as_json:
        raise InputError("-o - and --json both need the standard output; leave one out")
    if sys.stdout.isatty():
        raise InputError(
            "-o - writes bytes, not text for a terminal: redirect them to a file or a program"
        )
    return suffix_of(file_format)


def write_standard_output(data: bytes) -> None:
    """Write bytes to the standard output."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Path | str | None]) -> None:
    """Refuse to write over an input; a file that does not exist yet is none.

    A string stands for weights: a file, or a packaged name, which a folder may have too.
    """
    given = [path for path in map(_existing, inputs) if path is not None]
    for output in filter(Path.exists, outputs):
        for path in given:
            if output.samefile(path):
                alike = output.absolute() == path.absolute()
                link = "" if alike else f" (the same file as {path})"
                raise InputError(f"{output} is the input as well{link}; write elsewhere")


def refuse_duplicates(outputs: Sequence[Path]) -> None:
    """Refuse two outputs that are the same file."""
    for number, path in enumerate(outputs):
        for other in outputs[:number]:
            there = path.exists() and other.exists()
            if path.resolve() == other.resolve() or (there and path.samefile(other)):
                raise InputError(f"two outputs have the same name: {other} and {path}")


def folders_of(frames: Iterable[Path]) -> set[Path]:
    """Return the folders of frames and of the files that they link to."""
    folders = {frame.parent for frame in frames}
    return folders | {frame.resolve().parent for frame in frames if frame.is_symlink()}


def quote_pattern(inputs: Sequence[str], taken: str) -> InputError:
    """Return the error for a pattern that the shell has expanded to many files."""
    first = Path(inputs[0])
    pattern = first.parent / f"*{first.suffix}"
    return InputError(f"got {len(inputs)} inputs, {taken}; quote the pattern: '{pattern}'")


def files_of(pairs: "Iterable[FlowPair]") -> list[Path]:
    """Return all files of some pairs."""
    return [
        path
        for pair in pairs
        for path in (pair.image1, pair.image2, pair.truth, pair.occlusion, pair.visible_truth)
        if path is not None
    ]


def _existing(path: Path | str | None) -> Path | None:
    if isinstance(path, str):
        return Path(path) if Path(path).is_file() else None
    return path if path is not None and path.exists() else None
