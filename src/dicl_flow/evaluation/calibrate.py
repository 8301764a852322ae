"""Calibrates weights on rendered scenes: fits what turns cues into a confidence, and judges it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..config import CUES, LIVE, NORMAL, Calibration, Quality, RenderConfig, find_quality
from ..errors import InputError
from ..files import Array, write_files
from ..weights import Weights, encode_weights, load_model, read_weights, resolve
from .metrics import score_confidence

if TYPE_CHECKING:
    from torch import Tensor

    from ..estimation.estimator import FlowEstimator
    from ..render import Renderer

CALIBRATION_SCENES = RenderConfig(
    depth_share=0.35, still_scenes=0.02, objects=(6, 18), object_radius=(0.02, 0.8)
)
"""The scenes of a fit: small objects and depth, where flow is most often wrong."""
_RIDGE = 1e-4  # keeps the weight of a constant cue at zero
_MAX_STEPS = 50
_DIGITS = 6  # so that rounding in a sum does not change the file
_SPACING = 4  # px between the pixels that are used: neighbours are alike


class CalibrationPixels(NamedTuple):
    """Pixels with their cues and errors."""

    cues: Array  # (N, 7) float64, in the order of `CUES`
    error: Array  # (N,) px


@dataclass(frozen=True)
class Calibrated:
    """Weights with a calibration, and how good it is on scenes that were not used for the fit."""

    weights: Weights
    calibration: Calibration
    unseen_scenes: int
    right: float
    """The share of pixels of these scenes whose error is within the threshold."""
    ause_of_entropy: float
    """The AUSE of the confidence without a calibration."""
    judged: dict[str, float]
    """`ause`, `calibration_error`, and the mean error of each tenth by confidence, from the least
    confident (`decile_1`) to the most confident."""

    def save(self, path: str | Path) -> None:
        """Write the weights, with the calibration, to a .safetensors file."""
        if Path(path).suffix != ".safetensors":
            raise InputError(f"{path}: the output must end in .safetensors")
        write_files({Path(path): encode_weights(self.weights)})


def calibrate(
    weights: str | Path | None = None,
    photos: str | Path | None = None,
    *,
    quality: str | Quality = NORMAL,
    scenes: int = 64,
    size: tuple[int, int] = (384, 512),
    threshold: float = 1.0,
    seed: int = 1000,
    progress: Callable[[Collection[int], str], Iterable[int]] | None = None,
    **options: Any,
) -> Calibrated:
    """Fit what turns the cues of an estimate into the probability that its error is small.

    The errors are those of `scenes` rendered scenes of `size` (height, width), made of a folder
    of `photos`, or of computed textures without one; a third as many scenes judge the fit. An
    error of up to `threshold` px counts as right. Weights hold one calibration for each
    `quality`; fit them one after the other. `options` are those of `dicl_flow.load`: `device`,
    `precision`, `backend` and `memory_limit`. `progress` returns the numbers of the scenes that it
    is given, and may show how far that has come.

    >>> dicl_flow.calibrate("my.safetensors", "PHOTOS").save("calibrated.safetensors")
    """
    from ..render import list_photos

    folder = None if photos is None else Path(photos).expanduser()
    if folder is not None:
        list_photos(folder)  # complain before torch is imported, which takes seconds
    found, effort = read_weights(resolve(weights)), find_quality(quality)

    from ..estimation.estimator import FlowEstimator

    estimator = FlowEstimator(load_model(found, effort), quality=effort, **options)
    renderer = _renderer(estimator, folder, size, seed)
    numbers = range(scenes + -(-scenes // 3))
    watched = progress(numbers, "estimating") if progress else numbers
    parts = [_gather(estimator, renderer, number) for number in watched]
    seen, unseen = (
        CalibrationPixels(*map(np.concatenate, zip(*some, strict=True)))
        for some in (parts[:scenes], parts[scenes:])
    )
    calibration, num_unseen = fit_calibration(seen, threshold, scenes), len(parts) - scenes
    judged = judge(probability(calibration, unseen.cues), unseen.error, threshold)
    topic = "calibration" + ("" if effort.name == NORMAL else f" of quality {effort.name}")
    result = f"AUSE {judged['ause']:.3f}, calibration error {judged['calibration_error']:.3f}"
    about = f"{scenes} rendered scenes of {size[1]}x{size[0]}; {result} on {num_unseen} others"
    described = replace(found, about={**found.about, topic: about}, extremes=find_extremes(found))
    return Calibrated(
        described.calibrated(effort, calibration),
        calibration,
        num_unseen,
        float((unseen.error <= threshold).mean()),
        judge(1 - unseen.cues[:, 0], unseen.error, threshold)["ause"],
        judged,
    )


def find_extremes(weights: Weights) -> "dict[str, Tensor]":
    """What int8 needs; it also fits context nets that were trained for quality "live"."""
    from ..estimation.compute import int8_extremes

    extremes = int8_extremes(load_model(weights))
    if weights.trained_for(LIVE):
        own = int8_extremes(load_model(weights, LIVE))
        names = [name for name in own if ".context." in name]
        extremes |= {name: extremes[name].maximum(own[name]) for name in names}
    return extremes


def _renderer(
    estimator: "FlowEstimator", photos: Path | None, size: tuple[int, int], seed: int
) -> "Renderer":
    from ..estimation.inputs import Feeding
    from ..render import held_out_renderer

    config = estimator.model.config
    if Feeding.of(config).seen(size) != size:
        raise InputError(
            f"`size` must be what the network sees unchanged: multiples of {config.pad_multiple}"
            + (f", at most {config.max_pixels} px in all" if config.max_pixels else "")
            + f"; got {size[1]}x{size[0]}"
        )
    device = estimator.device
    return held_out_renderer(photos, size, device, config=CALIBRATION_SCENES, seed=seed)


def _gather(estimator: "FlowEstimator", renderer: "Renderer", number: int) -> CalibrationPixels:
    """Cues and errors of one scene, as 8-bit frames, at pixels that have a truth."""
    from ..data import collate

    batch = collate(renderer.render(1, number).to_samples())
    flow, cues = estimator.pipeline.measure(batch.image1, batch.image2)
    error = (flow.cpu() - batch.flow).norm(dim=1)
    some = (..., slice(None, None, _SPACING), slice(None, None, _SPACING))
    valid = batch.valid[some][0]
    return CalibrationPixels(
        cues.cpu()[some][0][:, valid].T.double().numpy(), error[some][0][valid].double().numpy()
    )


def fit_calibration(pixels: CalibrationPixels, threshold: float, scenes: int) -> Calibration:
    """Fit a logistic regression by Newton's method; the solution does not depend on the start."""
    right = pixels.error <= threshold
    if right.all() or not right.any():
        raise InputError(
            f"the error is {'always' if right.all() else 'never'} within {threshold:g} px on these "
            f"scenes, so there is nothing to fit; choose another `threshold`"
        )
    mean, scale = pixels.cues.mean(0), pixels.cues.std(0)
    scale = np.where(scale > 0, scale, 1)
    weights, bias = _logistic_regression((pixels.cues - mean) / scale, right)
    weights = weights / scale
    rounded = [float(f"{value:.{_DIGITS}g}") for value in (bias - weights @ mean, *weights)]
    named = dict(zip(("bias", *CUES), rounded, strict=True))
    return Calibration(**named, threshold=threshold, scenes=scenes)


def probability(calibration: Calibration, cues: Array) -> Array:
    """(N, 7) cues -> (N,) confidence, as the estimator computes it."""
    return _sigmoid(cues @ np.array(calibration.weights) + calibration.bias)


def judge(confidence: Array, error: Array, threshold: float) -> dict[str, float]:
    """Judge (N,) confidences: AUSE, calibration error, and the mean error by deciles."""
    groups = np.array_split(np.argsort(confidence, kind="stable"), 10)
    # between the mean confidence and the share of pixels that are right
    gaps = [abs(confidence[g].mean() - (error[g] <= threshold).mean()) for g in groups]
    deciles = {f"decile_{i}": float(error[g].mean()) for i, g in enumerate(groups, start=1)}
    ause = score_confidence(confidence, error).values["ause"]
    return {"ause": ause, "calibration_error": float(np.mean(gaps)), **deciles}


def _logistic_regression(inputs: Array, right: Array) -> tuple[Array, float]:
    """(N, K) standardised inputs, (N,) bool -> K weights and a bias."""
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    solution = np.zeros(inputs.shape[1])
    ridge = _RIDGE * np.eye(len(solution))
    for _ in range(_MAX_STEPS):
        chance = _sigmoid(inputs @ solution)
        gradient = inputs.T @ (chance - right) / len(right) + ridge @ solution
        curvature = (inputs * (chance * (1 - chance))[:, None]).T @ inputs / len(right) + ridge
        step = np.linalg.solve(curvature, gradient)
        solution -= step
        if np.abs(step).max() < 1e-9:
            break
    return solution[:-1], float(solution[-1])


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))  # does not overflow
