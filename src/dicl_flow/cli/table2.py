"""The command `table2`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .outputs import check_outputs, files_of, refuse_inputs

if TYPE_CHECKING:
    from ..data import FlowPair


def table2(
    chain: Annotated[
        Path | None, typer.Argument(metavar="[CHAIN]", help="Folder written by `reproduce`.")
    ] = None,
    without_projection: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder written by `reproduce --without-projection`."),
    ] = None,
    data: options.Data = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="JSON", help="Write all numbers to a file."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    device: options.Device = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Fill in the paper's table 2 with the weights of a chain, below the published rows.

    After `things` they are scored on KITTI-15 and Sintel (C+T), after `kitti` and `sintel` on
    that data set (+K/S), in float32. What is missing stays empty and is named.

    Examples:

      dicl-flow table2 runs/reproduce --data kitti15=KITTI --data sintel-clean=Sintel

      dicl-flow table2 runs/a --without-projection runs/b --data kitti15=KITTI --markdown table2.md
    """
    from ..lab.paper_table import WITH_PROJECTION, WITHOUT_PROJECTION, find_chain, measure_table

    folders = {WITH_PROJECTION: chain, WITHOUT_PROJECTION: without_projection}
    given = {method: folder for method, folder in folders.items() if folder is not None}
    _check(given)
    wanted = check_outputs([output, markdown])
    sets = _list_data(data or [])
    refuse_inputs(wanted, (file for pairs in sets.values() for file in files_of(pairs)))
    chains = {method: find_chain(method, folder) for method, folder in given.items()}
    used = [weights.path for stages in chains.values() for weights in stages.values()]
    refuse_inputs(wanted, used)

    from rich.console import Console

    from ..evaluation import grid_markdown, print_grid
    from ..files import write_files

    table = measure_table(chains, sets, device, partial(options.track, quiet=quiet))
    grids, document = table.grids(), table.document()
    tables = "\n\n".join(map(grid_markdown, grids)) + "\n"
    texts = {output: json.dumps(document, indent=1) + "\n", markdown: tables}
    contents = {path: text.encode() for path, text in texts.items() if path is not None}
    write_files(contents)
    if as_json:
        options.report({**document, "written": list(contents)}, quiet=quiet, as_json=True)
    elif not quiet:
        for grid in grids:
            print_grid(grid, Console())


def _check(given: dict[str, Path]) -> None:
    from ..errors import InputError

    if not given:
        raise InputError("name the folder of a chain, such as runs/reproduce")


def _list_data(arguments: list[str]) -> "dict[str, list[FlowPair]]":
    from ..data import list_pairs, parse_data_argument
    from ..errors import InputError, unknown_name
    from ..lab.paper_table import STAGES

    known = STAGES["things"][1]
    sets: dict[str, list[FlowPair]] = {}
    for name, root in map(parse_data_argument, arguments):
        if name not in known:
            raise unknown_name("column of table 2", name, known)
        sets[name] = list_pairs(name, root, needs_truth=True)
    if not sets:
        raise InputError(f"--data names no data set; table 2 has {', '.join(known)}")
    return sets
