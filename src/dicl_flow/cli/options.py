"""Options that several commands share, and how results and progress are printed."""

import json
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from ..errors import SlowWarning

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")


def print_warning(
    message: Warning | str, category: type[Warning], *place: Any, **options: Any
) -> None:
    """Print a warning of ours as one line to stderr, any other one as Python does."""
    if issubclass(category, SlowWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *place[:2]))


def _be_quiet(quiet: bool) -> bool:
    """Print no warnings either, until the command ends."""
    if quiet:
        warnings.showwarning = lambda *message, **options: None
    return quiet


def _set_max_size(megapixels: float | None) -> float | None:
    if megapixels is not None:
        from ..files import set_max_size

        set_max_size(megapixels)
    return megapixels


Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", "-w", help="Packaged name or .safetensors file.", metavar="NAME|PATH"
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", "-d", metavar="NAME=PATH", help="Folder of a data set; repeatable."),
]
StartFrom = Annotated[
    str | None,
    typer.Option(
        "--start-from", metavar="best|last", help="Weights a stage takes over; default: best."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Precision = Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")]
Backend = Annotated[str, typer.Option(help="auto (fast where it exists), fast or plain.")]
Quality = Annotated[
    str, typer.Option(help="fast, normal, or best: finer, but several times slower.")
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(min=0.1, help="GiB that an estimate may use; default: most of what is free."),
]
FullSize = Annotated[
    bool,
    typer.Option(
        "--full-size",
        help="Compute frames at full size, even if the weights would scale them down.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print what was chosen on this machine, and why.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_be_quiet, help="Print nothing but errors.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]
MaxSize = Annotated[
    float | None,
    typer.Option(
        "--max-size",
        metavar="MEGAPIXELS",
        help="Refuse to read larger images and flows; default: 150.",
        callback=_set_max_size,
    ),
]
FlowFormat = Annotated[
    str | None,
    typer.Option(
        "--format", help="Format of a flow that is -: flo (default), npy, npz, pfm, png, exr …"
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:KEY=VALUE…]",
        help="FFmpeg encoder of a video, such as h264_nvenc or libx264:crf=23:preset=slow.",
    ),
]
Maximum = Annotated[
    float | None,
    typer.Option(
        "--max",
        help="Length in px that gets full colour; default: the longest vector, or 1 px.",
    ),
]


def report(values: dict[str, Any], *, quiet: bool, as_json: bool, to_stderr: bool = False) -> None:
    """Print what a command found: aligned lines for people, or JSON for machines.

    In every command, `written` is the list of files that it has written. Lines leave out what is
    empty or not known.
    """
    if as_json:
        plain = {key: str(v) if isinstance(v, Size) else v for key, v in values.items()}
        typer.echo(json.dumps(plain, default=str))
    elif not quiet:
        told = {key: _text(value) for key, value in values.items() if value not in ([], None)}
        width = max(map(len, told))
        for key, text in told.items():
            typer.echo(f"{key.replace('_', ' '):<{width}}  {text}", err=to_stderr)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Size):
        return value.in_words
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Size(NamedTuple):
    """The size of an image: (height, width) for Python, WIDTHxHEIGHT on the command line."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def in_words(self) -> str:
        """Width and height, without the need to know their order."""
        return f"{self.width} wide, {self.height} high"


def parse_size(option: str, text: str) -> Size:
    """Read WIDTHxHEIGHT, the order of every size on the command line."""
    from ..errors import InputError

    found = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if not found:
        raise InputError(f"{option} must be WIDTHxHEIGHT, as 1024x436, got {text!r}")
    return Size(int(found[2]), int(found[1]))


def track(items: Collection[Item], description: str, *, quiet: bool) -> Iterable[Item]:
    """Yield the items with a progress bar, or without a terminal with a line every half minute."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if quiet or not console.is_terminal:
        return _told(items, description, console, wanted=not quiet)
    return track(items, description, console=console, transient=True)


def _told(
    items: Collection[Item], description: str, console: "Console", *, wanted: bool
) -> Iterator[Item]:
    from .watching import now_and_then

    start, done = perf_counter(), 0

    def tell() -> None:
        seconds = perf_counter() - start
        console.print(f"{description}: {done} of {len(items)}, {seconds:.0f} s")

    with now_and_then(tell, wanted=wanted):
        for item in items:
            yield item
            done += 1


def compute(
    device: str, precision: str, backend: str, memory_limit: float | None
) -> dict[str, Any]:
    """Return where and how to compute, as `load` takes it; the memory limit is in GiB."""
    names = {"device": device, "precision": precision, "backend": backend}
    return {**names, "memory_limit": in_bytes(memory_limit)}


def in_bytes(memory_limit: float | None) -> int | None:
    """Return a limit in GiB as bytes."""
    return None if memory_limit is None else int(memory_limit * 2**30)
