from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .outputs import check_outputs

if TYPE_CHECKING:
    from ..estimator import FlowEstimator, FlowResult


def flow(
    image1: Annotated[Path, typer.Argument(help="First frame.")],
    image2: Annotated[Path, typer.Argument(help="Second frame, of the same size.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Flow file: .flo, .png (KITTI), .pfm, .npz, .npy."),
    ] = None,
    image: Annotated[Path | None, typer.Option(help="Colour wheel picture.")] = None,
    overlay: Annotated[Path | None, typer.Option(help="Frame 1 coloured by its flow.")] = None,
    arrows: Annotated[Path | None, typer.Option(help="Frame 1 with arrows.")] = None,
    confidence: Annotated[Path | None, typer.Option(help="Confidence, white is sure.")] = None,
    backward: Annotated[
        Path | None, typer.Option(help="Flow file of the backward flow, frame 2 to frame 1.")
    ] = None,
    occlusion: Annotated[
        Path | None, typer.Option(help="White where frame 2 does not show a pixel of frame 1.")
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(help="Flow file to begin from; coarse levels are skipped.")
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="Flow of less confidence becomes unknown.")
    ] = None,
    weights: options.Weights = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    backend: options.Backend = "auto",
    quality: options.Quality = "normal",
    memory_limit: options.MemoryLimit = None,
    full_size: options.FullSize = False,
    maximum: options.Maximum = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Estimate the flow from IMAGE1 to IMAGE2.

    Examples:

      dicl-flow flow a.png b.png -o flow.flo --image flow.png

      dicl-flow flow a.png b.png -o kitti.png --weights my.safetensors --device cuda

      dicl-flow flow a.png b.png -o flow.flo --quality best

      dicl-flow flow a.png b.png -o there.flo --backward back.flo --occlusion hidden.png
    """
    from time import perf_counter

    from ..choices import computed
    from ..errors import InputError
    from ..estimator import load
    from ..files import read_flow, write_files
    from ..visualize import flow_statistics

    pictures = {
        "image": image,
        "overlay": overlay,
        "arrows": arrows,
        "confidence": confidence,
        "occlusion": occlusion,
    }
    wanted = check_outputs(
        flows=[output, backward],
        pictures=list(pictures.values()),
        inputs=[image1, image2, initial, weights],
    )
    if not wanted:
        raise InputError("nothing to write; give -o FLOW, --image PNG or another output")
    if verbose and quiet:
        raise InputError("--verbose and --quiet contradict each other; leave one out")
    how = (device, precision, backend, options.in_bytes(memory_limit))
    begin = None if initial is None else read_flow(initial)
    estimator = load(weights, *how, quality, full_size=full_size)
    if verbose:
        _explain(estimator, how, image1)
    start = perf_counter()
    result = estimator(image1, image2, backward=bool(backward or occlusion), initial=begin)
    seconds = perf_counter() - start
    if min_confidence is not None:
        result = _masked(result, min_confidence)
    flow_files = {output: result, backward: result.backward}
    write_files(_contents(result, image1, flow_files, pictures, maximum))
    height, width = result.flow.shape[:2]
    summary = {
        "written": wanted,
        "size": f"{width}x{height}",
        **computed(estimator, (height, width)),
        "known": flow_statistics(result.flow)["known"],
        "mean_length": flow_statistics(result.flow)["mean_length"],
        "max_length": flow_statistics(result.flow)["max_length"],
        "mean_confidence": float(result.confidence.mean()),
        "calibrated": estimator.calibration is not None,
        "quality": quality,
        "device": str(estimator.device),
        "backend": estimator.backend,
        "precision": estimator.precision,
        "seconds": seconds,
    }
    if result.occlusion is not None:
        summary["occluded"] = float(result.occlusion.mean())
    options.report(summary, quiet=quiet, as_json=as_json)


def _explain(
    estimator: "FlowEstimator", how: tuple[str, str, str, int | None], image1: Path
) -> None:
    """Print to stderr, so that --json stays one object."""
    from ..choices import explain, explain_frame
    from ..files import read_image

    height, width = read_image(image1).shape[:2]
    choices = explain(estimator.model.config, *how)
    choices["frame"] = explain_frame(estimator, (height, width))
    for name, choice in choices.items():
        typer.echo(f"{name:<9}  {choice.value}: {choice.reason}", err=True)


def _masked(result: "FlowResult", min_confidence: float) -> "FlowResult":
    from ..errors import InputError

    highest = float(result.confidence.max())
    if highest < min_confidence:
        raise InputError(
            f"no pixel has a confidence of {min_confidence:g}; the highest is {highest:.3f}"
        )
    return result.masked(min_confidence)


def _contents(
    result: "FlowResult",
    image1: Path,
    flow_files: "dict[Path | None, FlowResult | None]",
    pictures: dict[str, Path | None],
    maximum: float | None,
) -> dict[Path, bytes]:
    """Bytes of every file that was asked for."""
    import numpy as np

    from ..files import encode_flow, encode_image, read_image, to_uint8
    from ..visualize import confidence_to_grey, draw_arrows, overlay

    draw = {
        "image": lambda: result.to_rgb(maximum),
        "overlay": lambda: overlay(to_uint8(read_image(image1)), result.flow, maximum),
        "arrows": lambda: draw_arrows(to_uint8(read_image(image1)), result.flow, maximum=maximum),
        "confidence": lambda: confidence_to_grey(result.confidence),
        "occlusion": lambda: confidence_to_grey(np.asarray(result.occlusion)),
    }
    contents = {
        path: encode_flow(path, way.flow) for path, way in flow_files.items() if path and way
    }
    for kind, path in pictures.items():
        if path is not None:
            contents[path] = encode_image(path, draw[kind]())
    return contents
