"""Results and progress, as a command prints them."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer

from ..errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

Item = TypeVar("Item")


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
    size = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if not size:
        raise InputError(f"{option} must be WIDTHxHEIGHT, as 1024x436, got {text!r}")
    return Size(int(size[2]), int(size[1]))


def report(values: dict[str, Any], *, quiet: bool, as_json: bool, to_stderr: bool = False) -> None:
    """Print the results of a command: aligned lines for people, or JSON for machines.

    In every command, `written` is the list of files that it has written. Lines leave out what is
    empty or not known.
    """
    if as_json:
        plain = {key: str(v) if isinstance(v, Size) else v for key, v in values.items()}
        typer.echo(json.dumps(plain, default=str))
    elif not quiet:
        lines = {key: _text(value) for key, value in values.items() if value not in ([], None)}
        width = max(map(len, lines))
        for key, text in lines.items():
            typer.echo(f"{key.replace('_', ' '):<{width}}  {text}", err=to_stderr)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Size):
        return value.in_words
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def track(items: Collection[Item], description: str, *, quiet: bool) -> Iterable[Item]:
    """Yield the items with a progress bar, or without a terminal with a line every half minute."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if quiet or not console.is_terminal:
        return _track_in_lines(items, description, console, wanted=not quiet)
    return track(items, description, console=console, transient=True)


def _track_in_lines(
    items: Collection[Item], description: str, console: "Console", *, wanted: bool
) -> Iterator[Item]:
    start, done = perf_counter(), 0

    def print_line() -> None:
        seconds = perf_counter() - start
        console.print(f"{description}: {done} of {len(items)}, {seconds:.0f} s")

    with every_half_minute(print_line, wanted=wanted):
        for item in items:
            yield item
            done += 1


@contextmanager
def every_half_minute(call: Callable[[], None], *, wanted: bool) -> Iterator[None]:
    """Call something every half minute, from another thread: a frame may take minutes."""
    from ..training import run_folder

    ended = Event()

    def work() -> None:
        while not ended.wait(run_folder.EVERY):
            call()

    if wanted:
        Thread(target=work, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def make_bar(*columns: "str | ProgressColumn") -> "Progress":
    """Make a progress bar for stderr."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    return Progress(*columns, console=console, transient=True)


@contextmanager
def showing(bar: "Progress", line: Callable[[], str], *, quiet: bool) -> Iterator[None]:
    """Show a bar in a terminal; elsewhere print a line every half minute."""
    visible = bar.console.is_terminal and not quiet
    in_lines = every_half_minute(lambda: bar.console.print(line()), wanted=not (visible or quiet))
    with bar if visible else nullcontext(), in_lines:
        yield
