"""The command `export`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .outputs import check_outputs


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .onnx or .pt2.")],
    kind: Annotated[
        str | None,
        typer.Option("--format", help="onnx or torch-export; default: by the file's ending."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="WIDTHxHEIGHT", help="The only image size that the file will accept."),
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="The file will accept images of any size.")
    ] = False,
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Write the whole estimator, from uint8 images to flow and confidence, as one file.

    Before it is written, the file is run and compared with the estimator; a mean difference
    above 0.01 px is an error. The number of pairs is always free. The file is the plain network in
    float32; the program that runs it chooses the device.

    Examples:

      dicl-flow export --size 1024x436 -o flow.onnx

      dicl-flow export --dynamic -w my.safetensors -o flow.pt2
    """
    from ..errors import InputError

    check_outputs([output], inputs=[weights])
    kind = _format(kind, output)
    if (size is not None) == dynamic:
        raise InputError("give either --size WIDTHxHEIGHT or --dynamic")
    frame = options.parse_size("--size", size) if size is not None else None

    from ..files import write_files
    from ..weights import read_weights, resolve

    found = read_weights(resolve(weights))

    from ..estimation.estimator import load
    from ..export import INPUT, OUTPUT
    from ..export import export as make

    about = {"weights.sha256": found.sha256, **found.about}
    estimator = load(weights, device="cpu", precision="fp32", backend="plain", quality=quality)
    data, difference = make(estimator, kind, frame, about)
    write_files({output: data})
    summary = {
        "written": [output],
        "megabytes": len(data) / 1e6,
        "size": frame or "any",
        "mean_difference_px": difference.mean,
        "max_difference_px": difference.maximum,
        "input": INPUT,
        "output": OUTPUT,
    }
    options.report(summary, quiet=quiet, as_json=as_json)


def _format(asked: str | None, output: Path) -> str:
    """Return the format of a file by its ending, which must fit --format if that is given."""
    from ..errors import InputError, unknown_name

    suffixes = {
        "onnx": ".onnx",
        "torch-export": ".pt2",
    }  # listed here too, so that torch is not imported
    if asked is not None and asked not in suffixes:
        raise unknown_name("format", asked, suffixes)
    for kind, suffix in suffixes.items():
        if output.suffix == suffix and asked in (None, kind):
            return kind
    if asked is None:
        raise InputError(f"{output}: the output ends in {' or '.join(suffixes.values())}")
    raise InputError(f"{output}: a file of format {asked} ends in {suffixes[asked]}")
