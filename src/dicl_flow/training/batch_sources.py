"""Sources of training batches: data sets on disk, rendered scenes, a few fixed samples."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, repeat
from math import prod
from pathlib import Path
from typing import Protocol

import torch

from ..config import AugmentConfig, TrainConfig
from ..data import FlowBatch, FlowDataset, FlowPair, list_pairs
from ..data.loader import stream_batches
from ..errors import InputError, counted
from ..render import Renderer, TextureAtlas, augment_batch, list_photos, load_textures
from .distributed import Processes
from .recipe import PROCEDURAL, find_root


class BatchSource(Protocol):
    """An endless, resumable stream of batches: step n is always the same batch."""

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """Yield the share of this process in the batch of each step, starting at `start_step`."""


class DatasetSource:
    """Augmented pairs of a data set."""

    def __init__(self, dataset: FlowDataset, workers: int) -> None:
        self.dataset, self.workers = dataset, workers

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        return stream_batches(
            self.dataset,
            size,
            workers=self.workers,
            start_step=start_step,
            rank=processes.rank,
            world_size=processes.world_size,
        )


class DataSource(DatasetSource):
    """Those of the data sets on disk that a recipe names."""

    def __init__(self, config: TrainConfig, roots: Mapping[str, Path]) -> None:
        pairs: list[FlowPair] = []
        for entry in config.data:
            root = find_root(entry.name, roots)
            pairs += list_pairs(entry.name, root, needs_truth=True) * entry.repeat
        super().__init__(FlowDataset(pairs, config.augment, config.seed), config.workers)


class SceneSource:
    """Rendered scenes; their textures are on the device, or in a folder (None: procedural)."""

    def __init__(self, config: TrainConfig, textures: TextureAtlas | Path | None) -> None:
        self.config, self.textures = config, textures

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        config, textures, device = self.config, self.textures, processes.device
        if not isinstance(textures, TextureAtlas):
            textures = load_textures(textures, device, config.seed)
        sizes = config.render.sizes or (config.augment.crop,)
        renderers = [Renderer(config.render, s, textures, device, config.seed) for s in sizes]
        pairs = [max(1, round(size * prod(config.augment.crop) / prod(frame))) for frame in sizes]

        def render(step: int) -> FlowBatch:
            renderer, number = renderers[step % len(sizes)], pairs[step % len(sizes)]
            draw = step * processes.world_size + processes.rank
            batch = renderer.render(number, draw).to_batch()
            if not config.render.augmented:
                return batch
            return augment_batch(batch, config.augment, renderer.dice)

        scenes = map(render, count(start_step))
        return on_own_stream(scenes) if processes.on_gpu else scenes


class FixedSource:
    """The same few samples in every step: a check whether the network can learn them at all."""

    def __init__(self, config: TrainConfig, roots: Mapping[str, Path], num_samples: int) -> None:
        if num_samples < 1:
            raise InputError(f"`num_samples` must be at least 1, got {num_samples}")
        here = Processes(torch.device("cpu"))
        alike = AugmentConfig.crop_only(config.augment.crop)
        at_once = num_samples * config.optimizer.accumulate  # each part sees all samples
        plain = replace(config, augment=alike, workers=0, batch=at_once)
        source = open_source(plain, roots)
        if isinstance(source, DataSource) and len(source.dataset) < num_samples:
            held = len(source.dataset)
            raise InputError(f"`num_samples={num_samples}`: the data has {counted(held, 'pair')}")
        self.batch = next(source.batches(num_samples, 0, here))

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        return repeat(self.batch)


def open_source(config: TrainConfig, roots: Mapping[str, Path]) -> BatchSource:
    """Return the source of the data that the recipe names."""
    if all(entry.name != "rendered" for entry in config.data):
        return DataSource(config, roots)
    if len(config.data) > 1:
        raise InputError("the data set 'rendered' cannot be mixed with others")
    photos = find_root("rendered", roots)
    if str(photos) == PROCEDURAL:
        return SceneSource(config, None)
    list_photos(photos)  # an error now, not at the first batch
    return SceneSource(config, photos)


def on_own_stream(batches: Iterator[FlowBatch]) -> Iterator[FlowBatch]:
    """Make each batch on a separate CUDA stream, at the same time as the training step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # textures and shapes are made there
    while True:
        with torch.cuda.stream(stream):
            batch = next(batches)
        current = torch.cuda.current_stream()
        current.wait_stream(stream)  # later work uses the batch
        for tensor in vars(batch).values():
            tensor.record_stream(current)
        yield batch
