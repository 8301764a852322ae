from pathlib import Path
from typing import Annotated

import typer

from . import options


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="The authors' .pth.tar, or its state dict.")],
    output: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    padding: Annotated[
        str, typer.Option(help="replicate, or white for the authors' KITTI weights.")
    ] = "replicate",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Turn a checkpoint of the original code into a file that this package loads.

    Nothing in the checkpoint is executed, and every tensor in it is accounted for.

    Example:
      dicl-flow convert ckpt_sintel.pth.tar sintel.safetensors
    """
    from ..errors import InputError
    from ..files import write_files
    from ..weights import encode_weights, import_legacy

    options.check_outputs([output])
    if output.suffix != ".safetensors":
        raise InputError(f"{output}: the output ends in .safetensors")
    weights = import_legacy(checkpoint, padding)
    write_files({output: encode_weights(weights)})
    summary = {
        "written": str(output),
        "tensors": len(weights.tensors),
        "projection": weights.config.projection,
        "context": weights.config.context,
        "padding": weights.config.padding,
    }
    options.report(summary, quiet=quiet, as_json=as_json)
