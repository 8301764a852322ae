"""The commands under `analyze`: their group, and the options that they share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .command import Group

if TYPE_CHECKING:
    from ..data import FlowPair

analyze_app = typer.Typer(
    cls=Group, help="Analyse the method, as the paper does.", no_args_is_help=True
)

Output = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to.")]
ManyWeights = Annotated[
    list[str] | None,
    typer.Option("--weights", "-w", metavar="NAME|PATH", help="Weights; repeat to compare."),
]
Pair = Annotated[
    tuple[Path, Path] | None, typer.Option(metavar="IMAGE1 IMAGE2", help="The frames to look at.")
]
Truth = Annotated[Path | None, typer.Option(help="Flow file with the truth of --pair.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many pairs of each data set.")]


def find_pairs(
    pair: tuple[Path, Path] | None, truth: Path | None, data: list[str] | None, limit: int | None
) -> "list[FlowPair]":
    """Return the pairs of --pair or --data, else the packaged ones, those with truth first."""
    from dataclasses import replace

    from ..data import FlowPair, demo_pairs, list_pairs, parse_data_argument
    from ..errors import InputError
    from ..files import check_file

    if truth is not None and pair is None:
        raise InputError("--truth is the flow of --pair IMAGE1 IMAGE2; give those as well")
    if pair is not None and data:
        raise InputError("--pair and --data exclude each other")
    if pair is not None:
        for file in filter(None, (*pair, truth)):
            check_file(file)
        return [FlowPair(pair[0].stem, *pair, truth)]
    if not data:
        return sorted(demo_pairs(), key=lambda p: p.truth is None)
    sets = {name: list_pairs(name, root) for name, root in map(parse_data_argument, data)}
    return [
        replace(item, name=f"{name}/{item.name}")
        for name, pairs in sets.items()
        for item in pairs[:limit]
    ]


def find_weights(weights: list[str] | None) -> None:
    """Refuse missing weights before torch is imported, which takes seconds."""
    from ..weights import resolve

    names: list[str | None] = [*weights] if weights else [None]
    for name in names:
        resolve(name)
