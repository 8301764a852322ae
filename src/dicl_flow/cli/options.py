"""The settings of a command, options that several share, and how results and progress are shown."""

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from inspect import Parameter, Signature, cleandoc, get_annotations
from itertools import starmap
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer
from typer import Option

from ..errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress, ProgressColumn

    from ..estimation.estimator import FlowEstimator
    from ..evaluation import Grid
    from ..files import Reading

Item = TypeVar("Item")
LATE = 5.0  # seconds after which the progress of a single estimate is shown


def flag(name: str, about: str) -> Any:
    """Return an option that takes no value."""
    return Option(False, name, help=about)


def optional(about: str, *names: str, **how: Any) -> Any:
    """Return an option that may be left out, which is None then."""
    return Option(None, *names, help=about, **how)


def output(about: str, default: Any = ..., metavar: str | None = None) -> Any:
    """Return the option -o of a command."""
    return Option(default, "--output", "-o", metavar=metavar, help=about)


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


def _refused_by(check: str) -> Callable[[str], str]:
    """Return a callback that refuses a name at once, before torch is imported."""

    def checked(name: str) -> str:
        from ..estimation import names

        getattr(names, check)(name)
        return name

    return checked


Weights = Annotated[
    str | None,
    Option("--weights", "-w", help="Packaged name or .safetensors file.", metavar="NAME|PATH"),
]
ManyWeights = Annotated[
    list[str] | None,
    Option("--weights", "-w", metavar="NAME|PATH", help="Weights; repeat to compare."),
]
Data = Annotated[
    list[str] | None,
    Option("--data", "-d", metavar="NAME=PATH", help="Folder of a data set; repeatable."),
]
Device = Annotated[
    str, Option(help="auto, cpu, cuda, cuda:N or mps.", callback=_refused_by("check_device"))
]
Precision = Annotated[
    str, Option(help="auto, fp32, bf16, fp16 or int8.", callback=_refused_by("check_precision"))
]
Backend = Annotated[
    str,
    Option(
        help="auto (fast where it exists), fast or plain.", callback=_refused_by("check_backend")
    ),
]
Quality = Annotated[
    str,
    Option(
        help="live, fast, normal, or best: finer, but several times slower.",
        callback=_refused_by("check_quality"),
    ),
]
MemoryLimit = Annotated[
    float | None,
    Option(min=0.1, help="GiB that an estimate may use; default: most of what is free."),
]
FullSize = Annotated[
    bool,
    Option(
        "--full-size", help="Compute at full size, even if the weights would scale frames down."
    ),
]
MinConfidence = Annotated[
    float | None, Option(min=0, max=1, help="Flow with less confidence becomes unknown.")
]


def _put_up_fence(fenced: bool) -> bool:
    if fenced:
        from ..fence import put_up_fence

        put_up_fence()
    return fenced


Fenced = Annotated[
    bool,
    Option(
        "--fenced",
        help="Decode images and videos in processes without network, files or programs.",
        callback=_put_up_fence,
    ),
]
MaxSize = Annotated[
    float | None,
    Option(
        "--max-size",
        metavar="MEGAPIXELS",
        help="Refuse to read larger images and flows; default: 150.",
        callback=_set_max_size,
    ),
]
FlowFormat = Annotated[
    str | None,
    Option("--format", help="Format of a flow that is -: flo (default), npy, npz, pfm, png, exr …"),
]
ColorSpace = Annotated[
    str | None,
    Option(
        metavar="linear|srgb",
        help="Colour space of the images; default: linear for .exr, srgb for others.",
    ),
]
Layer = Annotated[
    str | None, Option(help="Layer of .exr images: beauty for beauty.R …; default: R, G, B.")
]
Alpha = Annotated[
    str | None,
    Option(
        metavar="straight|premultiplied",
        help="How images use alpha; default: premultiplied for .exr, straight for others.",
    ),
]
Maximum = Annotated[
    float | None,
    Option("--max", help="Length in px with full colour; default: the longest vector, or 1 px."),
]

Key = Annotated[
    bool,
    Option("--key", help="Add the length of full colour, or of an arrow, to pictures."),
]


class Size(NamedTuple):
    """The size of an image: (height, width) for Python, WIDTHxHEIGHT on the command line."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def parse_size(option: str, text: str) -> Size:
    """Read WIDTHxHEIGHT, the order of every size on the command line."""
    size = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if not size:
        raise InputError(f"{option} must be WIDTHxHEIGHT, as 1024x436, got {text!r}")
    return Size(int(size[2]), int(size[1]))


class Settings:
    """What was asked of a command: its fields are the options, its docstring is the help.

    A call does the work. The help lists the fields of a class, then those of the class it
    extends. These are no dataclasses: thirty of them take a tenth of a second to define.
    """

    quiet: Annotated[
        bool, Option("--quiet", "-q", callback=_be_quiet, help="Print nothing but errors.")
    ] = False
    as_json: Annotated[bool, Option("--json", help="Print one JSON object, nothing else.")] = False

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __call__(self) -> None:
        raise NotImplementedError

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """The name and the type of each option, in the order of the help."""
        types: dict[str, Any] = {}
        for owner in cls.__mro__:
            types |= {name: k for name, k in get_annotations(owner).items() if name not in types}
        return types

    def chosen(self, *names: str) -> dict[str, Any]:
        """Return some options by name, without those that this command does not have."""
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    @property
    def reading(self) -> "Reading":
        """What is said about images: --color-space, --alpha and --layer, where there are these."""
        from ..files import Reading

        return Reading(**self.chosen("color_space", "alpha", "layer"))

    def report(self, values: dict[str, Any], *, to_stderr: bool = False) -> None:
        """Print the results: aligned lines for people, or JSON for machines.

        In every command, `written` is the list of files that it has written. Lines leave out what
        is empty or not known.
        """
        if self.chosen("fenced").get("fenced"):
            from ..fence import describe_fence

            values = {**values, **describe_fence()}
        if self.as_json:
            plain = {key: str(v) if isinstance(v, Size) else v for key, v in values.items()}
            typer.echo(json.dumps(plain, default=str))
        elif not self.quiet:
            lines = [in_words(*item) for item in values.items() if item[1] not in ([], None)]
            width = max(len(name) for name, _ in lines)
            for name, text in lines:
                typer.echo(f"{name:<{width}}  {text}", err=to_stderr)

    def report_grids(
        self, document: dict[str, Any], written: "Iterable[Path]", grids: "Iterable[Grid]"
    ) -> None:
        """Print tables for people, or the document of their numbers as JSON."""
        if self.as_json:
            self.report({**document, "written": [*written]})
        elif not self.quiet:
            from rich.console import Console

            from ..evaluation import print_grid

            for grid in grids:
                print_grid(grid, Console())

    def track(self, items: Collection[Item], description: str) -> Iterator[Item]:
        """Yield the items with a progress bar, or a line every half minute."""
        from rich.progress import Progress

        start, done = perf_counter(), 0
        bar = make_bar(*Progress.get_default_columns())
        task = bar.add_task(description, total=len(items))

        def line() -> str:
            return f"{description}: {done} of {len(items)}, {perf_counter() - start:.0f} s"

        with showing(bar, line, quiet=self.quiet):
            for item in items:
                yield item
                done += 1
                bar.advance(task)


class ReadSettings(Settings):
    """Settings of a command that reads images, flows or videos."""

    max_size: MaxSize = None
    fenced: Fenced = False


class ComputeSettings(Settings):
    """Settings of a command that estimates, with where and how to compute."""

    device: Device = "auto"
    precision: Precision = "auto"
    backend: Backend = "auto"
    memory_limit: MemoryLimit = None

    @property
    def compute(self) -> dict[str, Any]:
        """Where and how to compute, as `load` takes it; the limit in bytes instead of GiB."""
        limit = in_bytes(self.memory_limit)
        return {**self.chosen("device", "precision", "backend"), "memory_limit": limit}

    @contextmanager
    def estimating(self) -> "Iterator[EstimateProgress]":
        """Show the progress of the estimate of one pair, if it takes long."""
        progress = EstimateProgress()
        with showing_late(progress, quiet=self.quiet or self.as_json):
            yield progress

    def load(self) -> "FlowEstimator":
        """Return the estimator for --weights, --quality and --full-size, where there are these."""
        from ..estimation.estimator import load

        return load(**self.chosen("weights", "quality", "full_size"), **self.compute)


class EstimateSettings(ComputeSettings):
    """Settings of a command that estimates the flow of files."""

    weights: Weights = None
    quality: Quality = "normal"
    max_size: MaxSize = None
    fenced: Fenced = False


def compute_summary(estimator: "FlowEstimator") -> dict[str, str]:
    """Return where and how an estimator computes, for the summary of a command."""
    return {name: str(getattr(estimator, name)) for name in ("device", "backend", "precision")}


def in_bytes(memory_limit: float | None) -> int | None:
    """Return a limit in GiB as bytes."""
    return None if memory_limit is None else int(memory_limit * 2**30)


def as_function(settings: type[Settings]) -> Callable[..., None]:
    """Return the function that Typer wants for a command."""

    def start(**values: Any) -> None:
        settings(**values)()

    def parameter(name: str, kind: Any) -> Parameter:
        default = getattr(settings, name, Parameter.empty)
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)

    fields = settings.option_types()
    start.__annotations__ = fields
    start.__signature__ = Signature([*starmap(parameter, fields.items())])  # type: ignore[attr-defined]
    # each example is a paragraph of the help
    start.__doc__ = cleandoc(settings.__doc__ or "").replace("\n  ", "\n\n  ")
    return start


def in_time(seconds: float) -> str:
    """Return a duration for people: 0.59 s, 48 s, 2.5 min, 3.4 h."""
    name, unit = next((each for each in _TIMES if seconds >= 2 * each[1]), ("s", 1))
    return f"{_three_digits(seconds / unit)} {name}"


def in_size(count: float) -> str:
    """Return a number of bytes for people: 731 B, 64.7 kB, 1.2 GB."""
    power = max(0, min(4, (len(f"{count:.0f}") - 1) // 3))
    return f"{_three_digits(count / 1000**power)} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


_TIMES = (("h", 3600), ("min", 60))
_SHOWN: dict[str, tuple[str | None, Callable[[float], str]]] = {
    r"seconds$": ("time", in_time),
    r"hours$": ("time", lambda hours: in_time(3600 * hours)),
    r"gigabytes$": ("data", lambda number: in_size(1e9 * number)),
    r"megabytes$": ("data", lambda number: in_size(1e6 * number)),
    r"^bytes$": ("data", in_size),
    r"flows_per_second$": ("speed", "{:.4g} flows/s".format),
    r"frames_per_second$": ("speed", "{:.4g} frames/s".format),
    r"pairs_per_second$": ("speed", "{:.4g} pairs/s".format),
    r"_ms$": ("", "{:.4g} ms".format),
    r"_px$": ("", "{:.4g} px".format),
    r"^(known|occluded|inside|valid|right)$|_share$": (None, lambda n: f"{100 * n:.4g} %"),
    r"^(over_\d+px|fl_\w+|wauc)$": (None, "{:.4g} %".format),
    r"^epe|_epe$|length$|_[xy]$|_p\d+$|_max$|_median$|^multiple$": (None, "{:.4g} px".format),
    r"^(s\d+_\w+|matched|unmatched|decile_\d+)$": (None, "{:.4g} px".format),
    r"^warping_error": (None, "{:.4g} grey levels".format),
    r"^arrow_scale$": (None, "{:.4g} px for each px".format),
}
"""By a pattern of the names of numbers: what is shown instead of it, and the number in its unit."""


def in_words(key: str, value: Any) -> tuple[str, str]:
    """Return a result for people: its name, and its value; numbers have their units.

    A unit in a name moves to the number: `hours`, 0.0029 is "time", "10.4 s".
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        for pattern, (instead, show) in _SHOWN.items():
            if re.search(pattern, key):
                name = key if instead is None else re.sub(pattern, instead, key)
                return name.replace("_", " "), show(value)
    return key.replace("_", " "), _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(" ".join(in_words(*item)) for item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def make_bar(*columns: "str | ProgressColumn") -> "Progress":
    """Make a progress bar for stderr."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    return Progress(*columns, console=console, transient=True)


@contextmanager
def showing(bar: "Progress", line: Callable[[], str], *, quiet: bool) -> Iterator[None]:
    """Show a bar in a terminal; elsewhere print a line every half minute.

    From another thread: a frame may take minutes.
    """
    from ..training import run_folder

    ended, visible = Event(), bar.console.is_terminal and not quiet

    def print_lines() -> None:
        while not ended.wait(run_folder.EVERY):
            bar.console.print(line())

    if not (visible or quiet):
        Thread(target=print_lines, daemon=True).start()
    try:
        with bar if visible else nullcontext():
            yield
    finally:
        ended.set()


class EstimateProgress:
    """The progress of an estimate, which is called with the work done and all of it."""

    def __init__(self) -> None:
        self._start = perf_counter()
        self._expected = 0.0  # seconds in all; 0: not known yet

    def __call__(self, done: int, total: int) -> None:
        self._expected = self.seconds * total / done

    @property
    def seconds(self) -> float:
        """Time so far."""
        return perf_counter() - self._start

    @property
    def share(self) -> float:
        """The share of the time that has passed, as far as that is known."""
        return min(self.seconds / self._expected, 1.0) if self._expected else 0.0

    def line(self) -> str:
        """The progress so far: "estimating: 36 s, 27%, about 98 s left"."""
        text, left = f"estimating: {self.seconds:.0f} s", self._expected - self.seconds
        return f"{text}, {self.share:.0%}, about {left:.0f} s left" if left >= 1 else text


@contextmanager
def showing_late(progress: EstimateProgress, *, quiet: bool) -> Iterator[None]:
    """Show the progress of what may be over in a moment: as `showing` does, but later."""
    if quiet:
        yield
        return
    ended = Event()

    def show() -> None:
        if ended.wait(LATE):
            return
        from rich.progress import BarColumn, TextColumn

        bar = make_bar(BarColumn(), TextColumn("{task.description}"))
        task = bar.add_task(progress.line(), total=1.0)
        if not bar.console.is_terminal:
            bar.console.print(progress.line())
        with showing(bar, progress.line, quiet=False):
            while not ended.wait(0.5):
                bar.update(task, completed=progress.share, description=progress.line())

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def nothing_written() -> Iterator[None]:
    """Run what comes before a command writes its files; Ctrl-C ends it with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written", err=True)
        raise typer.Exit(130) from None
