"""The command `bulk list`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options


def list_clips(
    folder: Annotated[str, typer.Argument(help="Folder tree, 'glob' or address.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Manifest to write, .csv or .parquet.")
    ],
    no_count: Annotated[
        bool, typer.Option("--no-count", help="Do not open each clip for its number of flows.")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Write a manifest: a row for each video, and for each folder of frames.

    Examples:

      dicl-flow bulk list footage -o manifest.parquet

      dicl-flow bulk list 'footage/**/*.mp4' -o manifest.csv --no-count
    """
    from ..bulk.manifest import MANIFEST_SUFFIXES, Manifest, read_manifest, write_manifest
    from ..bulk.tables import check_table
    from ..errors import InputError
    from .outputs import check_outputs

    check_outputs([output])
    if output.suffix.lower() not in MANIFEST_SUFFIXES:
        raise InputError(f"{output}: a manifest ends in {' or '.join(MANIFEST_SUFFIXES)}")
    check_table(output.suffix.lower())
    listed: Manifest = read_manifest(folder)
    rows = listed.rows(0, len(listed))
    if not no_count:
        from ..bulk.manifest import with_flows

        rows = [with_flows(r, r.path) for r in options.track(rows, "opening", quiet=quiet)]
    write_manifest(output, rows)
    flows = sum(row.expected() for row in rows)
    found = {"written": [output], "clips": len(rows), "flows": flows}
    options.report(found, quiet=quiet, as_json=as_json)
