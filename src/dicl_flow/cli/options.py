"""The settings of a command, and the options that several commands share."""

import warnings
from collections.abc import Callable, Collection, Iterable
from inspect import Parameter, Signature, get_annotations
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Option

from . import printing

if TYPE_CHECKING:
    from pathlib import Path

    from ..estimation.estimator import FlowEstimator
    from ..evaluation import Grid

Item = TypeVar("Item")


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
    Option("--weights", "-w", help="Packaged name or .safetensors file.", metavar="NAME|PATH"),
]
Data = Annotated[
    list[str] | None,
    Option("--data", "-d", metavar="NAME=PATH", help="Folder of a data set; repeatable."),
]
StartFrom = Annotated[
    str | None,
    Option("--start-from", metavar="best|last", help="Weights a stage takes over; default: best."),
]
ManyWeights = Annotated[
    list[str] | None,
    Option("--weights", "-w", metavar="NAME|PATH", help="Weights; repeat to compare."),
]
Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:N or mps.")]
Precision = Annotated[str, Option(help="auto, fp32, bf16 or fp16.")]
Backend = Annotated[str, Option(help="auto (fast where it exists), fast or plain.")]
Quality = Annotated[str, Option(help="fast, normal, or best: finer, but several times slower.")]
MemoryLimit = Annotated[
    float | None,
    Option(min=0.1, help="GiB that an estimate may use; default: most of what is free."),
]
FullSize = Annotated[
    bool,
    Option(
        "--full-size",
        help="Compute frames at full size, even if the weights would scale them down.",
    ),
]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Print what was chosen on this machine, and why.")
]
Quiet = Annotated[
    bool, Option("--quiet", "-q", callback=_be_quiet, help="Print nothing but errors.")
]
Json = Annotated[bool, Option("--json", help="Print one JSON object, nothing else.")]
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
Encoder = Annotated[
    str | None,
    Option(
        metavar="NAME[:KEY=VALUE…]",
        help="FFmpeg encoder of a video, such as h264_nvenc or libx264:crf=23:preset=slow.",
    ),
]
Maximum = Annotated[
    float | None,
    Option(
        "--max", help="Length in px that gets full colour; default: the longest vector, or 1 px."
    ),
]


class Settings:
    """What was asked of a command: its fields are the options, its docstring is the help.

    A call does the work. The help lists the fields of a class, then those of the class it
    extends. These are no dataclasses: thirty of them take a tenth of a second to define.
    """

    quiet: Quiet = False
    as_json: Json = False

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    def __call__(self) -> None:
        raise NotImplementedError

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """The name and the type of each option, in the order of the help."""
        found: dict[str, Any] = {}
        for owner in cls.__mro__:
            for name, kind in get_annotations(owner).items():
                found.setdefault(name, kind)
        return found

    def report(self, values: dict[str, Any], *, to_stderr: bool = False) -> None:
        """Print the results: lines for people, or JSON for machines."""
        printing.report(values, quiet=self.quiet, as_json=self.as_json, to_stderr=to_stderr)

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

    def track(self, items: Collection[Item], description: str) -> Iterable[Item]:
        """Yield the items and show the progress."""
        return printing.track(items, description, quiet=self.quiet)


class ComputeSettings(Settings):
    """Settings of a command that estimates, with where and how to compute."""

    device: Device = "auto"
    precision: Precision = "auto"
    backend: Backend = "auto"
    memory_limit: MemoryLimit = None

    @property
    def compute(self) -> dict[str, Any]:
        """Where and how to compute, as `load` takes it; the limit in bytes instead of GiB."""
        names = ("device", "precision", "backend")
        chosen = {name: getattr(self, name) for name in names}
        return {**chosen, "memory_limit": in_bytes(self.memory_limit)}

    def load(self) -> "FlowEstimator":
        """Return the estimator for --weights, --quality and --full-size, where there are these."""
        from ..estimation.estimator import load

        names = ("weights", "quality", "full_size")
        network = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return load(**network, **self.compute)


def compute_summary(estimator: "FlowEstimator") -> dict[str, str]:
    """Return where and how an estimator computes, for the summary of a command."""
    return {
        "device": str(estimator.device),
        "backend": estimator.backend,
        "precision": estimator.precision,
    }


def in_bytes(memory_limit: float | None) -> int | None:
    """Return a limit in GiB as bytes."""
    return None if memory_limit is None else int(memory_limit * 2**30)


def as_function(settings: type[Settings]) -> Callable[..., None]:
    """Return the function that Typer wants for a command."""

    def start(**given: Any) -> None:
        settings(**given)()

    fields = settings.option_types()
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=_default(settings, name))
        for name, kind in fields.items()
    ]
    start.__doc__, start.__annotations__ = settings.__doc__, fields
    start.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return start


def _default(settings: type[Settings], name: str) -> Any:
    return getattr(settings, name, Parameter.empty)
