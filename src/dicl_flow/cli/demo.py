"""The command `demo`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .computing import estimates
from .outputs import check_outputs


@estimates
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the results.")
    ] = Path("dicl-flow-demo"),
    weights: options.Weights = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Estimate and draw the flow of two packaged pairs: a film, and a rendered scene with truth.

    Examples:

      dicl-flow demo

      dicl-flow demo -o pictures --weights my.safetensors --device cuda
    """
    from time import perf_counter

    from ..data import demo_pairs
    from ..evaluation import draw_demo, score_pair
    from ..files import encode_flow, encode_image, write_files
    from ..weights import resolve

    check_outputs(folders=[output])
    resolve(weights)  # a missing file is named before torch is imported

    from ..estimation.estimator import load

    estimator = load(weights, **how)
    contents: dict[Path, bytes] = {}
    found: dict[str, float] = {}
    for pair in demo_pairs():
        start = perf_counter()
        result = estimator(pair.image1, pair.image2)
        found[f"{pair.name}_seconds"] = perf_counter() - start
        if pair.truth is not None:
            found[f"{pair.name}_epe"] = score_pair(pair, result.flow).values["epe"]
        flow_file, picture = output / f"{pair.name}.flo", output / f"{pair.name}.png"
        contents[flow_file] = encode_flow(flow_file, result.flow)
        contents[picture] = encode_image(picture, draw_demo(pair, result))
    output.mkdir(parents=True, exist_ok=True)
    write_files(contents)
    summary = {"written": list(contents), "device": estimator.device, **found}
    options.report(summary, quiet=quiet, as_json=as_json)
