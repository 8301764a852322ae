"""Writes the results of analyses to their folder, and prints them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import options
from .outputs import check_outputs, refuse_inputs

if TYPE_CHECKING:
    from ..files import Array

KINDS = ("json", "npz", "png", "md")


def check_findings(folder: Path, name: str, inputs: Iterable[Path | str | None]) -> None:
    """Refuse, before any work, a folder that cannot be written to, and outputs that are inputs."""
    check_outputs(folders=[folder])
    refuse_inputs([folder / f"{name}.{kind}" for kind in KINDS], inputs)


def write_findings(
    folder: Path,
    name: str,
    document: Any,
    figure: Any,
    arrays: "Mapping[str, Array] | None" = None,
    table: str = "",
) -> list[Path]:
    """Write NAME.json and NAME.png, NAME.npz where there are arrays, NAME.md where a table."""
    import json

    from ..files import encode_arrays, write_files
    from ..pictures.figures import encode_figure

    contents = {"json": (json.dumps(document, indent=1) + "\n").encode()}
    if arrays:
        contents["npz"] = encode_arrays(arrays)
    contents["png"] = encode_figure(figure)
    if table:
        contents["md"] = table.encode()
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / f"{name}.{kind}": content for kind, content in contents.items()}
    write_files(written)
    return list(written)


def report(
    summary: Mapping[str, Mapping[str, Any]], written: list[Path], *, quiet: bool, as_json: bool
) -> None:
    """Print a line for each entry, or JSON for machines."""
    told = summary if as_json else {name: _line(values) for name, values in summary.items()}
    options.report({**told, "written": written}, quiet=quiet, as_json=as_json)


def _line(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key.replace('_', ' ')} {value:.4g}"
        if isinstance(value, float)
        else f"{key.replace('_', ' ')} {value}"
        for key, value in values.items()
    )
