from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from ..estimator import FlowResult


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
    weights: options.Weights = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    backend: options.Backend = "auto",
    memory_limit: options.MemoryLimit = None,
    maximum: options.Maximum = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Estimate the flow from IMAGE1 to IMAGE2.

    Examples:

      dicl-flow flow a.png b.png -o flow.flo --image flow.png

      dicl-flow flow a.png b.png -o kitti.png --weights my.safetensors --device cuda
    """
    from time import perf_counter

    from ..errors import InputError
    from ..estimator import load
    from ..files import FLOW_SUFFIXES, write_files
    from ..visualize import flow_statistics

    pictures = {"image": image, "overlay": overlay, "arrows": arrows, "confidence": confidence}
    wanted = options.check_outputs([output, *pictures.values()])
    if not wanted:
        raise InputError("nothing to write; give -o FLOW, --image PNG or another output")
    if output is not None and output.suffix.lower() not in FLOW_SUFFIXES:
        raise InputError(f"{output}: flow files end in {', '.join(FLOW_SUFFIXES)}")
    estimator = load(weights, device, precision, backend, options.in_bytes(memory_limit))
    start = perf_counter()
    result = estimator(image1, image2)
    seconds = perf_counter() - start
    write_files(_contents(result, image1, output, pictures, maximum))
    height, width = result.flow.shape[:2]
    summary = {
        "written": ", ".join(map(str, wanted)),
        "size": f"{width}x{height}",
        "mean_length": flow_statistics(result.flow)["mean_length"],
        "max_length": flow_statistics(result.flow)["max_length"],
        "mean_confidence": float(result.confidence.mean()),
        "device": str(estimator.device),
        "backend": estimator.backend,
        "precision": estimator.precision,
        "seconds": seconds,
    }
    options.report(summary, quiet=quiet, as_json=as_json)


def _contents(
    result: "FlowResult",
    image1: Path,
    output: Path | None,
    pictures: dict[str, Path | None],
    maximum: float | None,
) -> dict[Path, bytes]:
    """Bytes of every file that was asked for."""
    from ..files import encode_flow, encode_image, read_image, to_uint8
    from ..visualize import confidence_to_grey, draw_arrows, overlay

    draw = {
        "image": lambda: result.to_rgb(maximum),
        "overlay": lambda: overlay(to_uint8(read_image(image1)), result.flow, maximum),
        "arrows": lambda: draw_arrows(to_uint8(read_image(image1)), result.flow),
        "confidence": lambda: confidence_to_grey(result.confidence),
    }
    contents = {output: encode_flow(output, result.flow)} if output else {}
    for kind, path in pictures.items():
        if path is not None:
            contents[path] = encode_image(path, draw[kind]())
    return contents
