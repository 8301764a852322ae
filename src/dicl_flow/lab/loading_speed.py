"""The speed of data loading: pairs per second, and the time of each stage."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from ..config import AugmentConfig
from ..data.augmentation import FlowDataset, augment_color, augment_erase, augment_geometry
from ..data.loader import batch_keys, stream_batches
from ..data.sample import FlowPair, FlowSample, collate


def measure_loader(dataset: FlowDataset, batch_size: int, workers: int, seconds: float) -> float:
    """Pairs per second of the loader, measured over `seconds` after its start."""
    batches = stream_batches(dataset, batch_size, workers=workers)
    for _ in range(1 + 2 * workers):  # skip what was prepared during the start, too
        next(batches)
    pairs, start = 0, perf_counter()
    while perf_counter() < start + seconds:
        next(batches)
        pairs += batch_size
    return pairs / (perf_counter() - start)


def measure_stages(
    pairs: Sequence[FlowPair], config: AugmentConfig, batch_size: int, seconds: float
) -> dict[str, float]:
    """Milliseconds per pair of each stage in one process, measured over `seconds`."""
    totals = dict.fromkeys(("reading", "geometry", "colour", "collating"), 0.0)
    dataset = FlowDataset(pairs, config, seed=0)
    end = perf_counter() + seconds
    batches = 0
    for keys in batch_keys(dataset, batch_size):
        samples = [_timed_sample(dataset, index, config, totals) for _, index in keys]
        with _timed(totals, "collating"):
            collate(samples)
        batches += 1
        if perf_counter() >= end:
            break
    return {stage: 1000 * total / (batches * batch_size) for stage, total in totals.items()}


def _timed_sample(
    dataset: FlowDataset, index: int, config: AugmentConfig, totals: dict[str, float]
) -> FlowSample:
    """Do what `FlowDataset` does, and time each stage."""
    with _timed(totals, "reading"):
        sample = dataset.read(index)
    sparse, generator = dataset.pairs[index].sparse, np.random.default_rng()
    with _timed(totals, "colour"):
        sample = augment_erase(sample, config, generator)
    with _timed(totals, "geometry"):
        sample = augment_geometry(sample, config, generator, sparse=sparse)
    with _timed(totals, "colour"):
        return augment_color(sample, config, generator, sparse=sparse)


@contextmanager
def _timed(totals: dict[str, float], stage: str) -> Iterator[None]:
    start = perf_counter()
    yield
    totals[stage] += perf_counter() - start
