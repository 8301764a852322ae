"""Pairs on disk as augmented samples, reproducible from a seed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..config import AugmentConfig
from ..errors import InputError
from ..files import Array
from .augment import augment
from .sample import FlowPair, FlowSample, read_sample


class FlowDataset:
    """Pairs on disk as augmented samples in memory, reproducible from (seed, epoch, index).

    To mix data sets, concatenate their lists: `FlowDataset(sintel + 5 * kitti, config, seed)`.
    A pair that is listed twice is augmented in two ways.
    """

    def __init__(self, pairs: Sequence[FlowPair], augment: AugmentConfig | None, seed: int) -> None:
        if not pairs:
            raise InputError("a data set needs at least one pair, got none")
        if seed < 0:
            raise InputError(f"seed must be at least 0, got {seed}")
        self.pairs = pairs
        self.augment = augment
        self.seed = seed

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: tuple[int, int]) -> FlowSample:
        """Return sample `index` as augmented in `epoch`, for key = (epoch, index)."""
        epoch, index = key
        sample = self.read(index)
        if self.augment is None:
            return sample
        generator = np.random.default_rng([self.seed, epoch, index])
        return augment(sample, self.augment, generator, sparse=self.pairs[index].sparse)

    def read(self, index: int) -> FlowSample:
        """Return the sample before augmentation; what augmentation would drop is not read."""
        pair = self.pairs[index]
        if self.augment is not None:
            pair = replace(pair, occlusion=None, visible_truth=None)
        return read_sample(pair)

    def order(self, epoch: int) -> Array:
        """Return the order of the indices in `epoch`."""
        # len(self) is not the index of a sample, so no sample has these random numbers.
        generator = np.random.default_rng([self.seed, epoch, len(self)])
        return generator.permutation(len(self))
