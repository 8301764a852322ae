"""Options that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", "-w", help="Packaged name or .safetensors file.", metavar="NAME|PATH"
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Precision = Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Maximum = Annotated[
    float | None,
    typer.Option("--max", help="Length in px that gets full colour; default: the longest vector."),
]


def report(values: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    """Print what a command found: aligned lines for people, or JSON for machines."""
    if as_json:
        typer.echo(json.dumps(values, default=str))
    elif not quiet:
        width = max(map(len, values))
        for key, value in values.items():
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            typer.echo(f"{key.replace('_', ' '):<{width}}  {text}")


def check_outputs(paths: list[Path | None]) -> list[Path]:
    """Keep the outputs that were asked for, refusing early what could not be written or clashes."""
    from ..errors import InputError
    from ..files import check_writable

    wanted = [path for path in paths if path is not None]
    for path in wanted:
        check_writable(path)
    names = [path.resolve() for path in wanted]
    twice = next((path for path in names if names.count(path) > 1), None)
    if twice:
        raise InputError(f"two outputs have the same name: {twice}")
    return wanted
