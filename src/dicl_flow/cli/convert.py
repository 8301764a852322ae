"""The command `convert`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .outputs import check_outputs


def convert(
    checkpoint: Annotated[
        Path, typer.Argument(help="The authors' .pth.tar or its state dict, or our .safetensors.")
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUTPUT", help="The same as --output.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .safetensors file to write.")
    ] = None,
    padding: Annotated[
        str, typer.Option(help="replicate, or white for the authors' KITTI weights.")
    ] = "replicate",
    half: Annotated[
        bool, typer.Option("--half", help="Store float16, batch statistics in float32.")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Convert a checkpoint of the original code to weights of this package, or shrink weights.

    Nothing in the checkpoint is executed, and every tensor in it is accounted for.

    Examples:

      dicl-flow convert ckpt_sintel.pth.tar -o sintel.safetensors

      dicl-flow convert runs/things/weights.safetensors -o things.safetensors --half
    """
    from ..errors import InputError
    from ..files import write_files
    from ..weights import encode_weights, halve, import_legacy, read_weights

    if (output is None) == (target is None):
        raise InputError("give one output: -o OUTPUT.safetensors")
    output = output or target
    assert output is not None
    check_outputs([output], inputs=[checkpoint])
    if output.suffix != ".safetensors":
        raise InputError(f"{output}: the output ends in .safetensors")
    ours = checkpoint.suffix == ".safetensors"
    weights = read_weights(checkpoint) if ours else import_legacy(checkpoint, padding)
    write_files({output: encode_weights(halve(weights) if half else weights)})
    summary = {
        "written": [output],
        "tensors": len(weights.tensors),
        "projection": weights.config.projection,
        "context": weights.config.context,
        "padding": weights.config.padding,
    }
    options.report(summary, quiet=quiet, as_json=as_json)
