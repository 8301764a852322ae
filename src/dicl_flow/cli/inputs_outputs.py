"""Inputs and outputs of commands, checked before torch is imported, which takes seconds."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, unknown_name

if TYPE_CHECKING:
    from ..data import FlowPair
    from ..files import Array, Plate, Reading
    from ..video import Source
    from ..video.coding import Coding

STANDARD = Path("-")
"""Stands for the standard input or output."""


def read_frames(*paths: Path, reading: "Reading | None" = None) -> "list[Array]":
    """Read each image as the network sees it, once, so that a pipe works too: (H, W, 3) RGB."""
    from ..files import Reading
    from ..files.plates import decode_seen, read_seen

    refuse_two_streams(paths)
    reading = reading or Reading()
    return [
        decode_seen(_standard_input(), "stdin", reading)
        if path == STANDARD
        else read_seen(path, reading)
        for path in paths
    ]


def read_plates(*paths: Path, reading: "Reading") -> "list[Plate]":
    """Do the same, with all that the files have: alpha, and values above 1."""
    from ..files import decode_plate, read_plate

    refuse_two_streams(paths)
    return [
        decode_plate(_standard_input(), "stdin", reading)
        if path == STANDARD
        else read_plate(path, reading)
        for path in paths
    ]


def assumed(paths: Iterable[Path], reading: "Reading") -> dict[str, str]:
    """Return what to print of the colour space of images; nothing if all is as usual."""
    if reading.color_space is not None:
        return {"color_space": reading.color_space}
    if not any(path.suffix.lower() == ".exr" for path in paths):
        return {}
    return {"color_space": "linear, assumed of .exr; otherwise give --color-space srgb"}


def describe_kept(plate: "Plate", output: Path) -> dict[str, str]:
    """Return what to print of alpha, and of what the output lacks, if an image has these."""
    from ..files.images import has_16_bits, has_alpha

    suffix, kept = output.suffix.lower(), {}
    to_exr, is_float = suffix == ".exr", plate.pixels.dtype.kind == "f"
    if plate.pixels.shape[2] == 4:
        now = plate.alpha if to_exr == is_float else "premultiplied" if to_exr else "straight"
        change = "" if now == plate.alpha else f"; {now} in {output.name}"
        dropped = f"; dropped, because {suffix} has none"
        kept["alpha"] = plate.alpha + (change if has_alpha(output) else dropped)
    if is_float and not to_exr and plate.pixels[..., :3].max() > 1:
        kept["cut_off"] = f"values above 1; {suffix} has none, .exr does"
    if plate.pixels.dtype.itemsize > 1 and not has_16_bits(output):
        kept["lost"] = f"{suffix} has 8 bits; .png and .tif have 16"
    if plate.left_out:
        kept["left_out"] = f"channels {_few(plate.left_out)}"
    return kept


def describe_clip(
    source: "Source", output: Path, reading: "Reading", coding: "Coding | None"
) -> dict[str, str]:
    """Return the same for a clip of which a video or, without `coding`, images are made."""
    from ..files import read_plate
    from ..video import lost_of, still_suffix

    lost = lost_of(source.look, coding)
    if not source.files:
        return lost
    try:
        plate = read_plate(source.files[0], reading)
    except (InputError, OSError):
        return lost  # the run says it
    if coding is None:
        return describe_kept(plate, output / f"frame{still_suffix(source)}")
    kept, depth = {}, plate.pixels.dtype
    if plate.pixels.shape[2] == 4:
        kept["alpha"] = "dropped: a video has none"
    if plate.left_out:
        kept["left_out"] = f"channels {_few(plate.left_out)}"
    if depth.kind == "f":
        kept["compressed"] = "values above 1, as for the network; a folder gets .exr"
    elif depth.itemsize > 1 and coding.bits < 16:
        kept["lost"] = f"16 bits become {coding.bits}; a folder keeps them"
    return kept | lost


def _few(names: Sequence[str]) -> str:
    """The names, or the first of them and how many there are besides."""
    more = len(names) - 4
    return ", ".join(names[:4]) + (f" and {more} more" if more > 0 else "")


def refuse_unlike(paths: Sequence[Path], plates: "Sequence[Plate]") -> None:
    """Refuse to blend images with and without alpha, or of two depths or colour spaces."""
    kinds = [
        (
            f"{plate.color_space}, "
            f"{'half or float' if plate.pixels.dtype.kind == 'f' else plate.pixels.dtype}, "
            f"{'with' if plate.pixels.shape[2] == 4 else 'without'} alpha"
        )
        for plate in plates
    ]
    if len({*kinds}) > 1:
        pairs = (f"{path} is {kind}" for path, kind in zip(paths, kinds, strict=True))
        raise InputError(f"both frames must be of one kind; {'; '.join(pairs)}")


def read_vectors(path: Path, file_format: str | None) -> "Array":
    """Read a flow, (H, W, 2); `file_format` is that of the standard input."""
    from ..files import decode_flow, read_flow

    if path == STANDARD:
        return decode_flow(f"stdin{suffix_of(file_format)}", _standard_input())
    if file_format is not None:
        raise InputError(f"--format is for - only; {path} has the format of its extension")
    return read_flow(path)


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


def _standard_input() -> bytes:
    from ..files import read_stream

    if sys.stdin.isatty():
        raise InputError(
            "- reads the standard input, which is a terminal here: pipe a file into it"
        )
    return read_stream(sys.stdin.buffer, "stdin")


def find_photos(folder: str) -> Path | None:
    """Return a folder of photographs for rendered scenes; None for "procedural"."""
    from ..render import list_photos

    if folder == "procedural":
        return None
    photos = Path(folder).expanduser()
    list_photos(photos)  # complain now, not when torch has been imported
    return photos


def parse_roots(data: list[str] | None, also: str = "") -> dict[str, Path]:
    """Return the folder of each data set of --data; `also` is a name that is not on disk."""
    from ..data import parse_data_argument

    return dict(parse_data_argument(argument, also=also) for argument in data or [])


def files_of(pairs: "Iterable[FlowPair]") -> list[Path]:
    """Return all files of some pairs."""
    return [file for pair in pairs for file in pair.files]


def folders_of(frames: Iterable[Path]) -> set[Path]:
    """Return the folders of frames and of the files that they link to."""
    folders = {frame.parent for frame in frames}
    return folders | {frame.resolve().parent for frame in frames if frame.is_symlink()}


def quote_pattern(inputs: Sequence[str], taken: str) -> InputError:
    """Return the error for a pattern that the shell has expanded to many files."""
    first = Path(inputs[0])
    pattern = first.parent / f"*{first.suffix}"
    return InputError(f"got {len(inputs)} inputs, {taken}; quote the pattern: '{pattern}'")


def check_weights(*weights: str | None) -> None:
    """Refuse missing weights; None stands for the packaged ones."""
    from ..weights import resolve

    for name in weights:
        resolve(name)


def check_outputs(
    files: Sequence[Path | None] = (),
    *,
    flows: Sequence[Path | None] = (),
    pictures: Sequence[Path | None] = (),
    plates: Sequence[Path | None] = (),
    plots: Sequence[Path | None] = (),
    folders: Sequence[Path | None] = (),
    inputs: Iterable[Path | str | None] = (),
    endings: Iterable[str] = (),
) -> list[Path]:
    """Return the files that were asked for; refuse those that cannot or must not be written.

    Flow files, pictures, plates (pictures that may be .exr) and plots need a known extension,
    `files` one of `endings` if there are any, and every file a folder that is there or can be
    created. No output may be an input, and no two outputs the same file, links included.
    """
    from ..files import check_flow_name, check_folder, check_writable
    from ..files.images import check_image_name
    from ..files.plates import check_plate_name

    named = (*files, *flows, *pictures, *plates, *plots)
    wanted = [path for path in named if path is not None]
    wanted_folders = [path for path in folders if path is not None]
    for path in wanted:
        check_writable(path)
    for path in wanted_folders:
        check_folder(path)
    for path in filter(None, flows):
        check_flow_name(path)
    for path in filter(None, pictures):
        check_image_name(path)
    for path in filter(None, plates):
        check_plate_name(path)
    for path in filter(None, plots):
        _check_ending(path, [".png"])
        check_matplotlib()
    for path in filter(None, files if endings else ()):
        _check_ending(path, endings)
    outputs = [*wanted, *wanted_folders]
    for number, path in enumerate(outputs):
        for other in outputs[:number]:
            there = path.exists() and other.exists()
            if path.resolve() == other.resolve() or (there and path.samefile(other)):
                raise InputError(f"two outputs have the same name: {other} and {path}")
    refuse_inputs(outputs, inputs)
    return wanted


def _check_ending(path: Path, endings: Iterable[str]) -> None:
    if path.suffix.lower() not in endings:
        raise InputError(f"{path}: the output must end in {' or '.join(endings)}")


def check_matplotlib() -> None:
    """Refuse to draw figures without matplotlib."""
    from ..pictures.figures import draw_figure

    draw_figure(1, 1)


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Path | str | None]) -> None:
    """Refuse to write over an input; a file that does not exist yet is none.

    A string stands for weights: a file, or a packaged name, which a folder may have too.
    """
    existing = [path for path in map(_existing, inputs) if path is not None]
    for output in filter(Path.exists, outputs):
        for path in existing:
            if output.samefile(path):
                alike = output.absolute() == path.absolute()
                link = "" if alike else f" (the same file as {path})"
                raise InputError(f"{output} is the input as well{link}; write elsewhere")


def _existing(path: Path | str | None) -> Path | None:
    if isinstance(path, str):
        return Path(path) if Path(path).is_file() else None
    return path if path not in (None, STANDARD) and path.exists() else None


def encode_json(document: Any) -> bytes:
    """Return the content of a .json file."""
    return (json.dumps(document, indent=1) + "\n").encode()
