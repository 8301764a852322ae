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
from ..errors import InputError
from ..render import Renderer, TextureAtlas, augment_batch, list_photos, load_textures
from .distributed import Processes
from .recipe import PROCEDURAL, find_root


class BatchSource(Protocol):
    """An endless, resumable stream of batches: step n is always the same batch."""

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """Yield the share of this process in the batch of each step, starting at `start_step`."""


class DataSource:
    """Augmented pairs of data sets on disk."""

    def __init__(self, config: TrainConfig, roots: Mapping[str, Path]) -> None:
        self.dataset = FlowDataset(_pairs(config, roots), config.augment, config.seed)
        self.workers = config.workers

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


class RenderSource:
    """Rendered scenes, as many as training needs, from photographs alone."""

    def __init__(self, config: TrainConfig, roots: Mapping[str, Path]) -> None:
        if len(config.data) > 1:
            raise InputError("the data set 'rendered' cannot be mixed with others")
        self.config = config
        self.photos = find_root("rendered", roots)
        if str(self.photos) != PROCEDURAL:
            list_photos(self.photos)  # an error now, not at the first batch

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        folder = None if str(self.photos) == PROCEDURAL else self.photos
        textures = load_textures(folder, processes.device, self.config.seed)
        return SceneSource(self.config, textures).batches(size, start_step, processes)


class SceneSource:
    """Rendered scenes with textures that are already on the device."""

    def __init__(self, config: TrainConfig, textures: TextureAtlas) -> None:
        self.config, self.textures = config, textures

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        config, device = self.config, processes.device
        sizes = config.render.sizes or (config.augment.crop,)
        renderers = [
            Renderer(config.render, frame, self.textures, device, config.seed) for frame in sizes
        ]
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
            raise InputError(f"`num_samples={num_samples}`: the data has {held} pairs")
        self.batch = next(source.batches(num_samples, 0, here))

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        return repeat(self.batch)


def open_source(config: TrainConfig, roots: Mapping[str, Path]) -> BatchSource:
    """Return the source of the data that the recipe names."""
    if any(entry.name == "rendered" for entry in config.data):
        return RenderSource(config, roots)
    return DataSource(config, roots)


def on_own_stream(batches: Iterator[FlowBatch]) -> Iterator[FlowBatch]:
    """Make each batch on a separate CUDA stream, at the same time as the training step."""
    stream = torch.cuda.Stream()
    while True:
        with torch.cuda.stream(stream):
            batch = next(batches)
        current = torch.cuda.current_stream()
        current.wait_stream(stream)  # later work uses the batch
        for tensor in vars(batch).values():
            tensor.record_stream(current)
        yield batch


def _pairs(config: TrainConfig, roots: Mapping[str, Path]) -> list[FlowPair]:
    return [
        pair
        for entry in config.data
        for pair in list_pairs(entry.name, find_root(entry.name, roots), needs_truth=True)
        * entry.repeat
    ]
