from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .outputs import check_outputs

if TYPE_CHECKING:
    from ..data import FlowPair
    from ..estimation.estimator import FlowResult
    from ..files import Array

_PACKAGED = Path(__file__).parents[1] / "demo"
_CELL = (512, 384)  # px, the size of the packaged frames
_BRIGHTEST = 5.0  # px of error
_CREDIT = "made from Big Buck Bunny, (c) 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0"


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the results.")
    ] = Path("dicl-flow-demo"),
    weights: options.Weights = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    backend: options.Backend = "auto",
    memory_limit: options.MemoryLimit = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Estimate and draw the flow of two packaged pairs: a film, and a rendered scene with truth.

    Examples:

      dicl-flow demo

      dicl-flow demo -o pictures --weights my.safetensors --device cuda
    """
    from time import perf_counter

    from ..evaluation import score_pair
    from ..files import encode_flow, encode_image, write_files
    from ..weights import resolve

    check_outputs(folders=[output])
    resolve(weights)  # a missing file is named before torch is imported

    from ..estimation.estimator import load

    estimator = load(weights, **options.compute(device, precision, backend, memory_limit))
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
        contents[picture] = encode_image(picture, _sheet(pair, result))
    output.mkdir(parents=True, exist_ok=True)
    write_files(contents)
    summary = {"written": list(contents), "device": estimator.device, **found}
    options.report(summary, quiet=quiet, as_json=as_json)


def demo_pairs() -> "list[FlowPair]":
    """Return the pairs that come with the package; CREDITS.md beside them says whose they are."""
    from ..data import FlowPair

    bunny = FlowPair("bunny", _PACKAGED / "bunny_img1.jpg", _PACKAGED / "bunny_img2.jpg")
    rendered = FlowPair(
        "rendered",
        _PACKAGED / "rendered_img1.png",
        _PACKAGED / "rendered_img2.png",
        _PACKAGED / "rendered_flow.png",
    )
    return [bunny, rendered]


def _sheet(pair: "FlowPair", result: "FlowResult") -> "Array":
    """Draw all there is to see of a pair, (H, W, 3) RGB."""
    import numpy as np

    from ..pictures.sheets import contact_sheet

    return np.concatenate(
        [
            contact_sheet([[*pictures.values()]], [line], [*pictures], *_CELL)
            for line, pictures in _rows(pair, result).items()
        ]
    )


def _rows(pair: "FlowPair", result: "FlowResult") -> "dict[str, dict[str, Array]]":
    """Two rows, each a line of text and its pictures by caption."""
    import numpy as np

    from ..data import read_frames, read_sample
    from ..evaluation import endpoint_error
    from ..pictures.visualize import (
        confidence_to_grey,
        draw_arrows,
        error_to_rgb,
        flow_to_rgb,
        full_color,
        overlay,
    )

    image1, image2 = read_frames(pair)
    sample = read_sample(pair) if pair.truth else None
    reference = sample.flow if sample else result.flow
    longest = full_color(reference)
    seen = {
        "frame 1": image1,
        "frame 2": image2,
        "estimated flow as arrows": draw_arrows(image1, result.flow),
    }
    found = {
        f"estimated flow, full colour is {longest:.0f} px": result.to_rgb(longest),
        "frame 1 coloured by it": overlay(image1, result.flow, longest),
        "confidence, white is sure": np.dstack([confidence_to_grey(result.confidence)] * 3),
    }
    line = ""
    if sample:
        error = endpoint_error(result.flow, sample.flow)
        seen["truth"] = flow_to_rgb(sample.flow, longest)
        caption = f"error, bright is {_BRIGHTEST:.0f} px or more"
        found[caption] = error_to_rgb(error, sample.valid, _BRIGHTEST)
        line = f"EPE {error[sample.valid].mean():.2f} px"
    return {f"{pair.name}: {_CREDIT}": seen, line: found}
