"""The command `calibrate`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .computing import estimates
from .input_files import parse_photos
from .outputs import check_outputs


@estimates
def calibrate(
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", metavar="rendered=PHOTOS", help="Photographs, or 'procedural'."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors to write.")],
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    scenes: Annotated[
        int,
        typer.Option(
            "--scenes", "-n", min=1, help="Scenes to fit to; a third as many test the fit."
        ),
    ] = 64,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of a scene.")] = "512x384",
    threshold: Annotated[
        float, typer.Option(min=0.01, help="Errors up to this many px count as right.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same scenes.")] = 1000,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Turn the confidence of weights into a probability, from errors on rendered scenes.

    The output holds the same weights with their calibration: one for each quality, fitted one
    after the other. The numbers printed are of scenes that were not used for the fit.

    Examples:

      dicl-flow calibrate -w runs/rendered/weights.safetensors -d rendered=PHOTOS -o my.safetensors

      dicl-flow calibrate -d rendered=procedural -o my.safetensors -n 16 --quality best
    """
    from ..errors import InputError
    from ..evaluation import calibrate as fit

    check_outputs([output], inputs=[weights])
    if output.suffix != ".safetensors":
        raise InputError(f"{output}: the output ends in .safetensors")
    found = fit(
        weights,
        parse_photos(data),
        quality=quality,
        scenes=scenes,
        size=options.parse_size("--size", size),
        threshold=threshold,
        seed=seed,
        progress=partial(options.track, quiet=quiet),
        **how,
    )
    found.save(output)
    summary = {
        "written": [output],
        "quality": quality,
        "confidence": found.calibration.meaning,
        "scenes": scenes,
        "unseen_scenes": found.unseen_scenes,
        "right": found.right,
        "ause_of_entropy": found.ause_of_entropy,
        **found.judged,
    }
    options.report(summary, quiet=quiet, as_json=as_json)
