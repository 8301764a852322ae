"""Held-out scenes of a study: rendered from held-out photographs with a separate seed."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..config import TrainConfig
from ..errors import InputError
from ..estimation.estimator import FlowEstimator
from ..evaluation import Score, pool, score_flow
from ..files import write_files
from ..render import RenderedBatch, Renderer, TextureAtlas, is_held_out, list_photos, load_textures
from ..training import PROCEDURAL, Trainer
from ..weights import Weights, load_model

SEED = 2**20  # of the held-out scenes; not for training
_BATCH = 16
_POINTS = 10  # of a training curve


def split_photos(place: Path) -> tuple[list[Path], list[Path]]:
    """Split photographs into those to train on and held-out ones, by a hash of their names."""
    if str(place) == PROCEDURAL:
        return [], []
    photos = list_photos(place)
    apart = {photo for photo in photos if is_held_out(_hash(photo.name))}
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


def held_out_scenes(
    config: TrainConfig, photos: Sequence[Path], count: int, device: torch.device
) -> list[RenderedBatch]:
    """Render `count` scenes as in the recipe, with photographs and a seed that it does not use."""
    textures: TextureAtlas = load_textures(photos, device, SEED)
    renderer = Renderer(config.render, config.augment.crop, textures, device, SEED)
    starts = range(0, count, _BATCH)
    return [renderer.render(min(_BATCH, count - start), start) for start in starts]


def score_scenes(weights: Weights, scenes: Sequence[RenderedBatch]) -> Score:
    """All metrics of the weights on the scenes, in float32."""
    scores: list[Score] = []
    for flow, scene in zip(_estimate(weights, scenes), scenes, strict=True):
        estimates = flow.permute(0, 2, 3, 1).cpu().numpy()
        scores += map(score_flow, estimates, scene.to_samples())
    return pool(scores)


def scene_error(weights: Weights, scenes: Sequence[RenderedBatch]) -> float:
    """The EPE only, computed on the device: cheap enough during training."""
    total = count = 0.0
    for flow, scene in zip(_estimate(weights, scenes), scenes, strict=True):
        total += (flow - scene.flow).norm(dim=1)[scene.valid].sum().item()
        count += scene.valid.sum().item()
    return total / count


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
            self.points[str(seen)] = scene_error(trainer.weights(), self.scenes)
            write_files({self.path: json.dumps(self.points).encode()})


def _estimate(weights: Weights, scenes: Sequence[RenderedBatch]) -> Iterator[Tensor]:
    with torch.random.fork_rng(devices=[]):  # building a network uses the global random generator
        model = load_model(weights)
    estimator = FlowEstimator(model, str(scenes[0].flow.device), "fp32", "plain")
    return (estimator.estimate(scene.image1, scene.image2)[0] for scene in scenes)


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
