"""The command `data check`, and the group of commands under `data`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .command import Group
from .outputs import check_outputs, files_of, refuse_inputs

data_app = typer.Typer(
    cls=Group, help="Check data sets, and measure how fast they load.", no_args_is_help=True
)


@data_app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="Data set, such as sintel-clean or kitti15:noc.")],
    root: Annotated[Path, typer.Argument(help="Its folder; for pairs also a manifest or video.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Contact sheet to write, .png or .jpg.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many pairs to open and draw.")] = 8,
    everything: Annotated[
        bool, typer.Option("--all", help="Open every pair; the sheet shows --samples of them.")
    ] = False,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Count the pairs of a data set, open some, and draw them on one sheet.

    Files that cannot be read are listed, and the exit code is 2.

    Examples:

      dicl-flow data check sintel-clean MPI-Sintel-complete -o sheet.png

      dicl-flow data check chairs FlyingChairs_release --all
    """
    from ..data import data_set, list_pairs
    from ..errors import InputError
    from ..files import encode_image, write_files
    from ..lab.data_sets import check_pairs, spread
    from . import describe

    check_outputs([output])
    if output is not None and output.suffix.lower() not in (".png", ".jpg"):
        raise InputError(f"{output}: a contact sheet ends in .png or .jpg")
    pairs = list_pairs(name, root)
    refuse_inputs([output] if output else [], files_of(pairs))
    drawn = spread(pairs, samples)
    opened = pairs if everything else drawn
    watched = options.track(opened, "reading", quiet=quiet)
    survey, sheet, errors = check_pairs(watched, set(drawn) if output else set())
    broken = [*map(describe, errors)]
    if output is not None and sheet is not None:
        write_files({output: encode_image(output, sheet)})
    summary = {
        "data_set": data_set(name).label,
        "pairs": len(pairs),
        "with_truth": sum(pair.truth is not None for pair in pairs),
        "opened": len(opened),
        "broken": broken if as_json else len(broken),
        **survey.summary(),
        "written": [] if output is None or sheet is None else [output],
    }
    options.report(summary, quiet=quiet, as_json=as_json)
    if broken:
        typer.echo("\n".join(f"broken: {message}" for message in broken), err=True)
        if output is not None and sheet is None:
            typer.echo(f"no pair can be read; {output} is not written", err=True)
        raise typer.Exit(2)
