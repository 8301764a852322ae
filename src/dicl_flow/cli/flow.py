"""The command `flow`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .computing import estimates
from .input_files import STANDARD, files_among, read_frames
from .outputs import check_outputs, check_standard_output, write_standard_output
from .starting import Parts, without_collection
from .waking import wake_cuda

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator, FlowResult
    from ..files import Array


@estimates
def flow(
    image1: Annotated[Path, typer.Argument(help="First frame; - is the standard input.")],
    image2: Annotated[Path, typer.Argument(help="Second frame, of the same size, or -.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Flow file: .flo, .png (KITTI), .pfm, .npz, .npy, .exr; or - (stdout).",
        ),
    ] = None,
    image: Annotated[Path | None, typer.Option(help="Colour wheel picture.")] = None,
    overlay: Annotated[Path | None, typer.Option(help="Frame 1 coloured by its flow.")] = None,
    arrows: Annotated[Path | None, typer.Option(help="Frame 1 with arrows.")] = None,
    confidence: Annotated[Path | None, typer.Option(help="Confidence; white is confident.")] = None,
    backward: Annotated[
        Path | None, typer.Option(help="Flow file of the backward flow, frame 2 to frame 1.")
    ] = None,
    occlusion: Annotated[
        Path | None, typer.Option(help="White where a pixel of frame 1 is hidden in frame 2.")
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(help="Flow file to start from; coarse levels are skipped.")
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="Flow with less confidence becomes unknown.")
    ] = None,
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    full_size: options.FullSize = False,
    maximum: options.Maximum = None,
    file_format: options.FlowFormat = None,
    max_size: options.MaxSize = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Estimate the flow from IMAGE1 to IMAGE2.

    Examples:

      dicl-flow flow a.png b.png -o flow.flo --image flow.png

      dicl-flow flow a.png b.png -o kitti.png --weights my.safetensors --device cuda

      dicl-flow flow a.png b.png -o flow.flo --quality best

      dicl-flow flow a.png b.png -o flow.flo --backward backward.flo --occlusion hidden.png

      cat frame2.jpg | dicl-flow flow frame1.jpg - -o - --format npy > flow.npy
    """
    from ..errors import InputError
    from ..files import encode_flow, read_flow, write_files
    from ..pictures.drawings import DRAWINGS
    from ..pictures.visualize import flow_statistics
    from ..weights import resolve

    given = (image, overlay, arrows, confidence, occlusion)
    pictures = dict(zip(DRAWINGS, given, strict=True))
    piped = output == STANDARD
    ending = _stream_ending(output, file_format, as_json=as_json)
    wanted = check_outputs(
        flows=[None if piped else output, backward],
        pictures=list(pictures.values()),
        inputs=[*files_among(image1, image2), initial, weights],
    )
    if not wanted and not piped:
        raise InputError("nothing to write; give -o FLOW, --image PNG or another output")
    if verbose and quiet:
        raise InputError("--verbose and --quiet contradict each other; leave one out")
    frames = read_frames(image1, image2)
    start_flow = None if initial is None else read_flow(initial)
    resolve(weights)  # a missing file is named before torch is imported, which takes seconds

    parts = Parts()
    wake_cuda(how["device"])
    with without_collection():
        import torch  # noqa: F401 - apart from what imports it: most of the time is spent here

        parts.end("torch")
        from ..estimation.estimator import computed, load

        parts.end("import")
        estimator = load(weights, quality=quality, full_size=full_size, **how)
    if verbose:
        _explain(estimator, frames[0])
    parts.take(estimator.load_seconds)
    result = estimator(*frames, backward=bool(backward or occlusion), initial=start_flow)
    parts.end("estimate")
    if min_confidence is not None:
        result = _masked(result, min_confidence)
    flow_files = {None if piped else output: result, backward: result.backward}
    stream = encode_flow(f"stdout{ending}", result.flow) if piped else b""
    write_files(_contents(result, frames[0], flow_files, pictures, maximum))
    if piped:
        write_standard_output(stream)
    parts.end("write")
    height, width = result.flow.shape[:2]
    statistics = flow_statistics(result.flow)
    summary = {
        "written": [*([output] if piped else []), *wanted],
        "size": options.Size(height, width),
        **computed(estimator, (height, width)),
        **{name: statistics[name] for name in ("known", "mean_length", "max_length")},
        "mean_confidence": float(result.confidence.mean()),
        "calibrated": estimator.calibration is not None,
        "quality": quality,
        "device": str(estimator.device),
        "backend": estimator.backend,
        "precision": estimator.precision,
        "seconds": parts.seconds["estimate"],
    }
    if result.occlusion is not None:
        summary["occluded"] = float(result.occlusion.mean())
    if as_json:
        summary["parts"] = parts.seconds
    options.report(summary, quiet=quiet, as_json=as_json, to_stderr=piped)
    if verbose:
        typer.echo(f"{'times':<9}  {parts}", err=True)


def _stream_ending(output: Path | None, file_format: str | None, *, as_json: bool) -> str:
    """Return the extension of a flow that is written to the standard output; "" if none is."""
    from ..errors import InputError

    if output == STANDARD:
        return check_standard_output(file_format, as_json=as_json)
    if file_format is not None:
        raise InputError("--format is for -o - only; a file has the format of its extension")
    return ""


def _explain(estimator: "FlowEstimator", image1: "Array") -> None:
    """Print to stderr, so that --json stays one object."""
    from ..estimation.estimator import explain_frame

    height, width = image1.shape[:2]
    frame = explain_frame(estimator, (height, width))
    choices = {**estimator.compute.choices(), "frame": frame, "path": estimator.engine.once()}
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
    image1: "Array",
    flow_files: "dict[Path | None, FlowResult | None]",
    pictures: dict[str, Path | None],
    maximum: float | None,
) -> dict[Path, bytes]:
    """Return the bytes of every file that was asked for."""
    from ..files import encode_flow, encode_image
    from ..pictures.drawings import draw_estimate

    found = (image1, result.flow, result.confidence, result.occlusion, maximum)
    contents = {
        path: encode_flow(path, estimate.flow)
        for path, estimate in flow_files.items()
        if path and estimate
    }
    drawn = {path: kind for kind, path in pictures.items() if path is not None}
    images = {path: encode_image(path, draw_estimate(k, *found)) for path, k in drawn.items()}
    return contents | images
