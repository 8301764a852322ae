"""The student: the network trained on hard views of the footage, by turns with rendered scenes.

The views are those of training on pairs: crops, scale, colour, noise, blur, erased parts; here also
pairs reversed in time. Flow and kept pixels are transformed with the frames.

Rendered scenes have exact flow: nothing is forgotten. Half are textured with frames of the footage
and move as fast as it does; most of all get its look.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import floor, log2
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from ..config import AugmentConfig, TrainConfig
from ..data import FlowBatch, FlowDataset, FlowPair, FlowSample, UnlabelledBatch, augment
from ..files import Array, read_image
from ..render import load_textures
from ..training import BatchSource, Processes, SceneSource
from ..training.batch_sources import DatasetSource
from ..weights import Weights
from .footage import SLOWEST, speed_bins
from .look import InLook, read_looks
from .settings import AdaptConfig
from .teacher import Lesson, mean_octave, read_counts, read_flow

_FEWEST = 0.1  # share of the pixels of the most frequent speed that stays, at least
_TEXTURES = 64  # most frames of the footage that are textures
_SCENE_SPEED = 10.6  # px: the geometric mean of rendered scenes of the recipe, at 512x384
_PACES = (1 / 16, 1.0)


class FootageDataset(FlowDataset):
    """Views of the pairs that the teacher has looked at, reproducible from (seed, epoch, index)."""

    def __init__(
        self,
        lessons: Sequence[Lesson],
        config: AugmentConfig,
        seed: int,
        new_frames: float = 0.0,
        stay: Array | None = None,
    ) -> None:
        """Take the share of new second frames, and of pixels that stay at each speed."""
        pairs = [FlowPair(str(n), each.image1, each.image2) for n, each in enumerate(lessons)]
        super().__init__(pairs, config, seed)
        self.lessons, self.new_frames, self.stay = lessons, new_frames, stay

    def __getitem__(self, key: tuple[int, int]) -> FlowSample:
        """Return pair `index` as seen in `epoch`, for key = (epoch, index)."""
        epoch, index = key
        generator = np.random.default_rng([self.seed, epoch, index])
        assert self.augment is not None
        view = augment(self._drawn(index, generator), self.augment, generator, sparse=False)
        if self.stay is None:
            return view
        speed = np.hypot(view.flow[..., 0], view.flow[..., 1])
        stays = generator.random(speed.shape, np.float32) < self.stay[speed_bins(speed)]
        return replace(view, valid=view.valid & stays)

    def _drawn(self, index: int, generator: np.random.Generator) -> FlowSample:
        """A pair as it is, reversed in time, or with a new second frame."""
        files = self.lessons[index]
        made, backwards = generator.random(2) < (self.new_frames, 0.5)
        if made:
            flow, kept = read_flow(files.new_flow)
            return FlowSample(read_image(files.image1), read_image(files.new_image2), flow, kept)
        return read_view(files, backwards=bool(backwards))


def read_view(files: Lesson, *, backwards: bool = False) -> FlowSample:
    """Read a pair with what the teacher has kept; backwards, from frame 2 to frame 1."""
    images = [read_image(files.image1), read_image(files.image2)]
    flow, kept = read_flow(files.flows, int(backwards))
    image1, image2 = images[::-1] if backwards else images
    return FlowSample(image1, image2, flow, kept)


def between(start: Weights, end: Weights, share: float) -> Weights:
    """Weights that have gone a share of the way from `start` to `end`."""
    tensors = {
        key: tensor.float().lerp(end.tensors[key].float(), share).to(end.tensors[key].dtype)
        if tensor.is_floating_point()
        else end.tensors[key]
        for key, tensor in start.tensors.items()
    }
    return replace(end, tensors=tensors)


def staying_shares(kept_by_speed: Sequence[int], balance: float) -> Array:
    """(speeds,) the share of kept pixels that is trained on, so that fast ones count.

    Speeds that are more frequent than the middle one of those that occur are thinned out.
    """
    counts = np.array(kept_by_speed, float)
    occurring = counts[counts > 0]
    middle = np.median(occurring) if len(occurring) else 1.0
    shares = (middle / counts.clip(min=1)) ** balance
    return shares.clip(_FEWEST, 1).astype(np.float32)


def footage_speed(lessons: Sequence[Lesson], distances: Sequence[int]) -> float:
    """The geometric mean in px from one frame to the next, of pairs of frames so far apart."""
    octaves = [mean_octave(read_counts(files.counts)) for files in lessons]
    per_frame = [octave - log2(frames) for octave, frames in zip(octaves, distances, strict=True)]
    return SLOWEST * 2.0 ** mean(per_frame)


def paced(config: TrainConfig, speed: float) -> TrainConfig:
    """The recipe with rendered scenes of such a speed in px."""
    pace = min(max(speed / _SCENE_SPEED, _PACES[0]), _PACES[1])
    return replace(config, render=replace(config.render, motion=pace * config.render.motion))


class FootageSource(DatasetSource):
    """Batches of views of the footage."""

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        for batch in super().batches(size, start_step, processes):
            yield UnlabelledBatch(**vars(batch))


class Mixed:
    """Batches of two sources by turns; `share` of them, spread evenly, are of the second."""

    def __init__(self, first: BatchSource, second: BatchSource, share: float = 0.5) -> None:
        self.first, self.second, self.share = first, second, share

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        done = self._of_second(start_step)
        first = self.first.batches(size, start_step - done, processes)
        second = self.second.batches(size, done, processes)
        for step in count(start_step):
            is_second = self._of_second(step + 1) > self._of_second(step)
            yield next(second if is_second else first)

    def _of_second(self, steps: int) -> int:
        """How many of the first `steps` batches are of the second source."""
        return floor(steps * self.share + 1e-9)


def mixed_source(
    lessons: Sequence[Lesson],
    stay: Array,
    speed: float,
    settings: AdaptConfig,
    config: TrainConfig,
    photos: Path | None,
    device: torch.device,
) -> Mixed:
    """Return what the student is trained on: footage, of a speed, and rendered scenes by turns."""
    dataset = FootageDataset(lessons, config.augment, config.seed, settings.new_frames, stay)
    scenes: BatchSource = SceneSource(config, photos)
    if settings.footage_textures:
        frames = {path for each in lessons for path in (each.image1, each.image2)}
        textures = load_textures(sorted(frames), device, config.seed, limit=_TEXTURES)
        own_config = paced(config, speed) if settings.footage_motion else config
        own = SceneSource(replace(own_config, seed=config.seed + 1), textures)
        scenes = Mixed(scenes, own, settings.footage_textures)
    if settings.look:
        looks = read_looks([each.look for each in lessons])
        scenes = InLook(scenes, looks, settings.look, config.seed)
    return Mixed(FootageSource(dataset, config.workers), scenes, 1 - settings.views)
