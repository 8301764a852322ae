from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .input_files import find_photos
from .outputs import check_outputs

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator
    from ..evaluation import Evidence
    from ..render import Renderer

_SPACING = 4  # px between the pixels that are used: neighbours say the same


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
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Turn the confidence of weights into a probability, from errors on rendered scenes.

    The output holds the same weights and, beside them, the calibration: one for each quality,
    fitted one after the other. The numbers printed are of scenes that were not used for the fit.

    Examples:

      dicl-flow calibrate -w runs/rendered/weights.safetensors -d rendered=PHOTOS -o my.safetensors

      dicl-flow calibrate -d rendered=procedural -o my.safetensors -n 16 --quality best
    """
    from dataclasses import replace

    from ..config import find_quality
    from ..errors import InputError
    from ..evaluation import Evidence, fit_calibration, judge, probability
    from ..files import write_files
    from ..weights import encode_weights, load_model, read_weights, resolve

    check_outputs([output], inputs=[weights])
    if output.suffix != ".safetensors":
        raise InputError(f"{output}: the output ends in .safetensors")
    frame, photos = options.parse_size("--size", size), _photos(data)
    found, effort = read_weights(resolve(weights)), find_quality(quality)

    # torch, which takes seconds: after all that is missing
    from ..estimation.estimator import FlowEstimator

    estimator = FlowEstimator(load_model(found), device, precision, quality=effort)
    renderer = _renderer(estimator, photos, frame, seed)
    numbers = options.track(range(scenes + -(-scenes // 3)), "estimating", quiet=quiet)
    parts = [_gather(estimator, renderer, number) for number in numbers]
    calibration = fit_calibration(Evidence.of(parts[:scenes]), threshold, scenes)
    unseen = Evidence.of(parts[scenes:])
    before = judge(1 - unseen.cues[:, 0], unseen.error, threshold)
    after = judge(probability(calibration, unseen.cues), unseen.error, threshold)
    topic = "calibration" if quality == "normal" else f"calibration of quality {quality}"
    about = {**found.about, topic: _describe(scenes, size, len(parts) - scenes, after)}
    calibrated = replace(found, about=about).calibrated(effort, calibration)
    write_files({output: encode_weights(calibrated)})
    summary = {
        "written": [output],
        "quality": quality,
        "confidence": calibration.meaning,
        "scenes": scenes,
        "unseen_scenes": len(parts) - scenes,
        "right": float((unseen.error <= threshold).mean()),
        "ause_of_entropy": before["ause"],
        **after,
    }
    options.report(summary, quiet=quiet, as_json=as_json)


def _photos(data: str) -> Path | None:
    from ..errors import InputError

    name, _, folder = data.partition("=")
    if name != "rendered" or not folder:
        raise InputError(f"--data is rendered=PHOTOS or rendered=procedural, got {data!r}")
    return find_photos(folder)


def _renderer(
    estimator: "FlowEstimator", photos: Path | None, frame: tuple[int, int], seed: int
) -> "Renderer":
    from ..errors import InputError
    from ..evaluation import CALIBRATION_SCENES
    from ..ops import size_in_multiples
    from ..render import held_out_renderer

    config, device = estimator.model.config, estimator.device
    if size_in_multiples(frame, config.pad_multiple, config.max_pixels) != frame:
        raise InputError(
            f"--size must be what the network sees unchanged: multiples of {config.pad_multiple}"
            + (f", at most {config.max_pixels} px in all" if config.max_pixels else "")
            + f"; got {frame[1]}x{frame[0]}"
        )
    return held_out_renderer(photos, frame, device, config=CALIBRATION_SCENES, seed=seed)


def _gather(estimator: "FlowEstimator", renderer: "Renderer", number: int) -> "Evidence":
    """Cues and errors of one scene, as 8-bit frames, at pixels that have a truth."""
    from ..data import collate
    from ..evaluation import Evidence

    batch = collate(renderer.render(1, number).to_samples())
    flow, cues = estimator.measure(batch.image1, batch.image2)
    error = (flow.cpu() - batch.flow).norm(dim=1)
    some = (..., slice(None, None, _SPACING), slice(None, None, _SPACING))
    valid = batch.valid[some][0]
    return Evidence(
        cues.cpu()[some][0][:, valid].T.double().numpy(), error[some][0][valid].double().numpy()
    )


def _describe(scenes: int, size: str, unseen: int, judged: dict[str, float]) -> str:
    quality = f"AUSE {judged['ause']:.3f}, calibration error {judged['calibration_error']:.3f}"
    return f"{scenes} rendered scenes of {size}; {quality} on {unseen} others"
