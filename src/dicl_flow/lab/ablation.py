"""Ablations: train and score each variant in the same way, once; a killed study resumes."""

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..config import TrainConfig, to_toml
from ..data import FlowPair
from ..errors import InputError
from ..estimation.compute import gpu_name
from ..estimation.estimator import FlowEstimator, load
from ..evaluation import (
    KITTI_RANGE,
    Prediction,
    Score,
    pool,
    predict,
    score_flow,
    score_predictions,
)
from ..files import encode_flow, write_files
from ..models import count_parameters
from ..render import RenderedBatch, Renderer, is_held_out, list_photos, load_textures
from ..training import BatchSource, Outcome, Processes, SceneSource, Trainer, open_source, train
from ..training.recipe import PROCEDURAL
from ..weights import Weights, encode_weights, halve, leave_out, load_model, read_weights
from .analyses import find_peaks
from .variants import HELD_OUT, DataScore, Variant, VariantFolder, VariantResult
from .volumes import has_scores, open_networks

_SEED = 2**20  # of the held-out scenes; not for training
_BATCH = 16
_POINTS = 5  # of a training curve
_WITH_PEAKS = ("sintel-clean", "sintel-final")  # the paper measures d_peak on Sintel


def split_photos(place: Path) -> tuple[list[Path], list[Path]]:
    """Split photographs into those to train on and held-out ones.

    A folder with `train` and `held-out` is split already, others are by a hash of the names.
    """
    if str(place) == PROCEDURAL:
        return [], []
    train, held_out = place / "train", place / "held-out"
    if train.is_dir() and held_out.is_dir():
        return list_photos(train), list_photos(held_out)
    photos = list_photos(place)
    digests = {photo: hashlib.sha256(photo.name.encode()).hexdigest() for photo in photos}
    apart = {photo for photo in photos if is_held_out(digests[photo])}
    if not apart or len(apart) == len(photos):
        raise InputError(
            f"{place}: a tenth of the photographs, chosen by name, is held out; "
            f"{len(photos)} are too few for that, give 50 or more"
        )
    return [photo for photo in photos if photo not in apart], sorted(apart)


def keep_to(path: Path, photos: Sequence[Path], num_scenes: int) -> None:
    """Record in a file which photographs and scenes a study uses; refuse others later."""
    names = "\n".join(sorted(photo.name for photo in photos))
    seen = {
        "photographs": len(photos),
        "sha256 of their names": hashlib.sha256(names.encode()).hexdigest(),
        "held-out scenes": num_scenes,
    }
    if not path.exists():
        write_files({path: (json.dumps(seen, indent=1) + "\n").encode()})
    elif json.loads(path.read_text()) != seen:
        raise InputError(
            f"{path.parent} was started with other photographs or another number of held-out "
            f"scenes, see {path}; use those, or choose another folder"
        )


class Curve:
    """The held-out EPE by pairs seen, measured during training and stored in a file."""

    def __init__(self, path: Path, config: TrainConfig, scenes: Sequence[RenderedBatch]) -> None:
        self.path, self.batch, self.scenes = path, config.batch, scenes
        self.steps = {round(config.steps * n / _POINTS) for n in range(1, _POINTS + 1)} - {0}
        self.points: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, trainer: Trainer) -> None:
        """Measure if this step is one of those of the curve."""
        seen = trainer.step * self.batch
        # a resumed run repeats steps: later points are measured again
        self.points = {pairs: epe for pairs, epe in self.points.items() if int(pairs) <= seen}
        if trainer.step in self.steps and str(seen) not in self.points:
            total = count = 0.0  # on the device: cheap enough during training
            for scene, flow in _estimate(trainer.weights(), self.scenes):
                total += (flow - scene.flow).norm(dim=1)[scene.valid].sum().item()
                count += scene.valid.sum().item()
            self.points[str(seen)] = total / count
            write_files({self.path: json.dumps(self.points).encode()})


def _estimate(
    weights: Weights, scenes: Sequence[RenderedBatch]
) -> Iterator[tuple[RenderedBatch, Tensor]]:
    """Each batch of scenes with its flow, in float32."""
    with torch.random.fork_rng(devices=[]):  # building a network uses the global random generator
        model = load_model(weights)
    estimator = FlowEstimator(model, str(scenes[0].flow.device), "fp32", "plain")
    return ((scene, estimator.estimate(scene.image1, scene.image2)[0]) for scene in scenes)


@dataclass(frozen=True)
class Laboratory:
    """What the variants of a study share."""

    folder: Path
    device: torch.device
    source: Callable[[TrainConfig], BatchSource]
    scenes: Sequence[RenderedBatch]  # the held-out ones
    quiet: bool = False

    def train(self, variant: Variant) -> Outcome:
        """Train a variant, from its checkpoint if there is one, and score it on the scenes."""
        folder, config = VariantFolder(self.folder, variant), variant.config
        curve = Curve(folder.curve, config, self.scenes)
        how = (config, self.source(config), folder.run, Processes(self.device))
        initial = variant.start and variant.start.path
        outcome = train(*how, initial=initial, resume=True, watch=curve, quiet=self.quiet)
        if outcome.finished:
            weights, scores = halve(read_weights(folder.run.weights)), list[Score]()
            for scene, flow in _estimate(weights, self.scenes):
                estimates = flow.permute(0, 2, 3, 1).cpu().numpy()
                scores += map(score_flow, estimates, scene.to_samples())
            found = {f"{number:04d}": score.values for number, score in enumerate(scores)}
            by_scene = {scene: {"epe": v["epe"]} for scene, v in found.items() if "epe" in v}
            held_out = DataScore(len(scores), pool(scores).values, by_scene)
            scored: dict[str, Any] = {"curve": curve.points, "scores": {HELD_OUT: held_out}}
            result = _result(variant, weights, folder.run.log, self.device, **scored)
            frozen = config.optimizer.frozen
            if variant.start and frozen:
                weights = leave_out(weights, variant.start.path, frozen)
            folder.write(result, encode_weights(weights))
        gc.collect()  # a recorded step keeps GPU memory until its reference cycle is collected
        return outcome


def _result(
    variant: Variant,
    weights: Weights,
    log: Path,
    device: torch.device,
    curve: Mapping[str, float],
    scores: Mapping[str, DataScore],
) -> VariantResult:
    """The results of a trained variant; the speed is the median of its log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    speeds = [line["pairs_per_second"] for line in lines if "pairs_per_second" in line]
    return VariantResult(
        config="\n".join(map(to_toml, variant.stages)),
        seed=variant.config.seed,
        trained_pairs=variant.pairs,
        device=gpu_name(device) or device.type,
        code=code_version(),
        parameters=count_parameters(load_model(weights)),
        pairs_per_second=median(speeds) if speeds else 0.0,
        curve=curve,
        scores=scores,
    )


@cache
def code_version() -> str:
    """The first digits of a hash of the package's source files."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def conclude_stages(variant: Variant, root: Path, device: torch.device) -> None:
    """Write the result of a variant whose stages are all trained; remove their checkpoints."""
    folder = VariantFolder(root, variant)
    stages = folder.stages()
    weights = halve(read_weights(stages[-1].weights))
    result = _result(variant, weights, stages[-1].folder.log, device, curve={}, scores={})
    folder.write(result, encode_weights(weights))
    for stage in stages:
        stage.folder.checkpoint.unlink(missing_ok=True)


def open_laboratory(
    folder: Path,
    config: TrainConfig,
    roots: Mapping[str, Path],
    num_scenes: int,
    device: torch.device,
    *,
    quiet: bool = False,
) -> Laboratory:
    """Hold out photographs and render scenes of them as in the recipe; the others are textures."""
    photos, apart = split_photos(roots.get("rendered", Path(PROCEDURAL)))
    keep_to(folder / "data.json", [*photos, *apart], num_scenes)
    textures = load_textures(apart, device, _SEED)
    renderer = Renderer(config.render, config.augment.crop, textures, device, _SEED)
    starts = range(0, num_scenes, _BATCH)
    scenes = [renderer.render(min(_BATCH, num_scenes - start), start) for start in starts]
    if all(entry.name != "rendered" for entry in config.data):
        return Laboratory(folder, device, lambda c: open_source(c, roots), scenes, quiet)
    atlas = load_textures(photos, device)
    return Laboratory(folder, device, lambda c: SceneSource(c, atlas), scenes, quiet)


def evaluate_variant(
    variant: Variant,
    root: Path,
    data: str,
    pairs: Sequence[FlowPair],
    device: str,
    watched: Iterable[FlowPair] | None = None,
    keep: Path | None = None,
) -> bool:
    """Score a finished variant on a data set, unless it has been scored on these pairs.

    On Sintel, d_peak is measured as well. Return whether there is a score; that needs the weights.
    `watched`: the same pairs, showing progress. `keep`: a folder for the estimates.
    """
    folder = VariantFolder(root, variant)
    result = folder.read()
    if result is None:
        raise InputError(f"{folder.run.path} holds no finished training")
    known = result.scores.get(data)
    if known is not None and set(known.pairs) == {pair.name for pair in pairs}:
        return True
    weights = folder.weights_for(data)
    if not weights.exists():
        return False
    estimator = load(weights, device, "fp32", "plain")  # "fast" takes longer to start
    predictions = predict(watched or pairs, lambda *frames: estimator(*frames).flow)
    scores = score_predictions(predictions if keep is None else _kept(predictions, keep))
    by_pair = {name: score.values for name, score in scores.items()}
    score = DataScore(len(pairs), pool(scores.values()).values, by_pair)
    peaks = dict(result.peaks)
    if data in _WITH_PEAKS and has_scores(estimator):
        peaks[data] = _measure_peaks(variant.name, weights, pairs, device)
    folder.write(replace(result, scores={**result.scores, data: score}, peaks=peaks))
    return True


def _kept(predictions: Iterable[Prediction], folder: Path) -> Iterator[Prediction]:
    """The same predictions; their flows are written in KITTI's format, in steps of 1/64 px."""
    for prediction in predictions:
        path = folder / f"{prediction.pair.name}.png"
        write_files({path: encode_flow(path, prediction.flow.clip(*KITTI_RANGE))})
        yield prediction


def _measure_peaks(
    name: str, weights: Path, pairs: Sequence[FlowPair], device: str
) -> dict[str, dict[str, float]]:
    """d_peak before and after DAP, and the errors of two readouts, over all pairs."""
    (network,) = open_networks([str(weights)], device, "fp32").values()
    return {stage: peaks.summary() for stage, peaks in find_peaks({name: network}, pairs).items()}
