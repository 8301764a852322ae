"""The command `submit`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .computing import estimates
from .outputs import check_outputs


@estimates
def submit(
    benchmark: Annotated[str, typer.Argument(help="sintel, kitti15 or kitti12.")],
    root: Annotated[Path, typer.Argument(help="The data set's folder, with its test frames.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .zip file to write.")],
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Estimate the test frames of a benchmark and pack them for upload.

    KITTI's server takes the archive as it is. For Sintel, unpack it and run the bundler that
    comes with the data set on the folders clean and final.

    Example:

      dicl-flow submit kitti15 data_scene_flow -o kitti15.zip --weights my.safetensors
    """
    from ..errors import InputError
    from ..evaluation import predict, submission_entries, write_submission
    from ..weights import resolve

    check_outputs([output], inputs=[weights])
    if output.suffix.lower() != ".zip":
        raise InputError(f"{output}: the output ends in .zip")
    entries = submission_entries(benchmark, root)
    resolve(weights)  # a missing file is named before torch is imported

    from ..estimation.estimator import load

    estimator = load(weights, quality=quality, **how)
    pairs = options.track(entries.values(), benchmark, quiet=quiet)
    predictions = predict(pairs, lambda *frames: estimator(*frames).flow)
    write_submission(output, entries, predictions)
    summary = {"written": [output], "files": len(entries)}
    options.report(summary, quiet=quiet, as_json=as_json)
