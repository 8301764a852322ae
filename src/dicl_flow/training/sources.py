"""Where training batches come from."""

from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Protocol

from ..config import AugmentConfig, TrainConfig
from ..data import FlowBatch, FlowDataset, FlowPair, collate, list_pairs, stream_batches
from ..errors import InputError
from .distributed import Processes


class BatchSource(Protocol):
    """An endless, resumable stream of batches: step n is always the same batch."""

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """Yield this process's share of each step's batch, from `start_step` on."""


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


class FixedSource:
    """The same few samples again and again, to see whether the network can learn them at all."""

    def __init__(self, config: TrainConfig, roots: Mapping[str, Path], count: int) -> None:
        crop_only = AugmentConfig.crop_only(config.augment.crop)
        pairs = _pairs(config, roots)
        if count < 1 or len(pairs) < count:
            raise InputError(f"--overfit {count}: the data has {len(pairs)} pairs")
        dataset = FlowDataset(pairs[:count], crop_only, config.seed)
        self.batch = collate([dataset[0, index] for index in range(count)])

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        return repeat(self.batch)


def _pairs(config: TrainConfig, roots: Mapping[str, Path]) -> list[FlowPair]:
    return [
        pair
        for entry in config.data
        for pair in list_pairs(entry.name, _root(entry.name, roots), needs_truth=True)
        * entry.repeat
    ]


def _root(name: str, roots: Mapping[str, Path]) -> Path:
    for known in (name, name.partition(":")[0]):
        if known in roots:
            return roots[known]
    raise InputError(f"the recipe trains on {name!r}: say where it lies with --data {name}=PATH")
