"""Reads or checks inputs before torch is imported, which takes seconds."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, unknown_name

if TYPE_CHECKING:
    from ..files import Array

STANDARD = Path("-")
"""Stands for the standard input or output."""


def read_frames(*paths: Path) -> "list[Array]":
    """Read each image, (H, W, 3) RGB in the depth of the file, once, so that a pipe works too."""
    refuse_two_streams(paths)
    return [_read_frame(path) for path in paths]


def read_vectors(path: Path, file_format: str | None) -> "Array":
    """Read a flow, (H, W, 2); `file_format` is that of the standard input."""
    from ..files import decode_flow, read_flow

    if path != STANDARD:
        if file_format is not None:
            raise InputError(f"--format is for - only; {path} has the format of its extension")
        return read_flow(path)
    return decode_flow(f"stdin{suffix_of(file_format)}", _standard_input())


def suffix_of(file_format: str | None) -> str:
    """Return the extension of a --format; .flo without one."""
    from ..files import FLOW_SUFFIXES, check_flow_name

    suffix = f".{file_format or 'flo'}"
    if suffix not in FLOW_SUFFIXES:
        raise unknown_name("format", file_format, [known[1:] for known in FLOW_SUFFIXES])
    check_flow_name(suffix)
    return suffix


def refuse_two_streams(paths: Iterable[Path]) -> None:
    """Refuse the standard input for two inputs."""
    if sum(path == STANDARD for path in paths) > 1:
        raise InputError("only one input can be -, the standard input; give the other as a file")


def files_among(*paths: Path) -> list[Path]:
    """Return the paths of files, without the standard input."""
    return [path for path in paths if path != STANDARD]


def _read_frame(path: Path) -> "Array":
    from ..files import check_unit_range, decode_image, read_image

    image = decode_image(_standard_input(), "stdin") if path == STANDARD else read_image(path)
    if image.dtype.kind == "f":
        try:
            check_unit_range(float(image.min()), float(image.max()))
        except InputError as error:
            name = "stdin" if path == STANDARD else path
            raise InputError(f"{name}: {error}") from None
    return image


def _standard_input() -> bytes:
    from ..files import read_stream

    if sys.stdin.isatty():
        raise InputError(
            "- reads the standard input, which is a terminal here: pipe a file into it"
        )
    return read_stream(sys.stdin.buffer, "stdin")


def parse_photos(data: str) -> Path | None:
    """Read rendered=PHOTOS or rendered=procedural, and find the photographs."""
    name, _, folder = data.partition("=")
    if name != "rendered" or not folder:
        raise InputError(f"--data is rendered=PHOTOS or rendered=procedural, got {data!r}")
    return find_photos(folder)


def find_photos(folder: str) -> Path | None:
    """Return a folder of photographs for rendered scenes; None for "procedural"."""
    from ..render import list_photos

    if folder == "procedural":
        return None
    photos = Path(folder).expanduser()
    list_photos(photos)  # complain now, not when torch has been imported
    return photos
