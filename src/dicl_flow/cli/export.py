from pathlib import Path
from typing import Annotated

import typer

from . import options
from .outputs import check_outputs


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .onnx or .pt2.")],
    kind: Annotated[str, typer.Option("--format", help="onnx or torch-export.")] = "onnx",
    size: Annotated[
        str | None, typer.Option(metavar="HEIGHTxWIDTH", help="The one size of image it takes.")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="It takes any size.")] = False,
    weights: options.Weights = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Write the whole estimator, uint8 images in, flow and confidence out, as one file.

    The file is run and compared with the estimator first; a mean difference above 0.01 px is
    an error. The number of pairs is always free.

    Examples:

      dicl-flow export --size 436x1024 -o flow.onnx

      dicl-flow export --format torch-export --dynamic -w my.safetensors -o flow.pt2
    """
    from ..errors import InputError

    check_outputs([output], inputs=[weights])
    _check(kind, output, size is not None, dynamic)
    frame = options.parse_size("--size", size) if size is not None else None
    if frame is not None and min(frame) < 1:
        raise InputError(f"--size must be at least 1x1, got {size}")

    from ..files import write_files
    from ..weights import read_weights, resolve

    found = read_weights(resolve(weights))

    from ..estimator import load
    from ..export import INPUT, OUTPUT
    from ..export import export as make

    about = {"weights.sha256": found.sha256, **found.about}
    estimator = load(weights, device="cpu", precision="fp32", backend="plain")
    data, difference = make(estimator, kind, frame, about)
    write_files({output: data})
    summary = {
        "written": str(output),
        "megabytes": len(data) / 1e6,
        "size": "any" if dynamic else f"{size}, height x width",
        "mean_difference_px": difference.mean,
        "max_difference_px": difference.maximum,
        "input": INPUT,
        "output": OUTPUT,
    }
    options.report(summary, quiet=quiet, as_json=as_json)


def _check(kind: str, output: Path, fixed: bool, dynamic: bool) -> None:
    """Refuse what needs no torch to be refused."""
    from ..errors import InputError, unknown_name

    suffixes = {"onnx": ".onnx", "torch-export": ".pt2"}
    if kind not in suffixes:
        raise unknown_name("format", kind, suffixes)
    if output.suffix != suffixes[kind]:
        raise InputError(f"{output}: a file of format {kind} ends in {suffixes[kind]}")
    if fixed == dynamic:
        raise InputError("give either --size HEIGHTxWIDTH or --dynamic")
