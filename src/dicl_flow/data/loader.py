"""An endless stream of batches that a seed and a step number define."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from itertools import count
from multiprocessing import active_children
from multiprocessing.resource_tracker import ensure_running

import cv2
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import InputError, hide_library_warnings
from .dataset import FlowDataset
from .sample import FlowBatch, collate

Key = tuple[int, int]  # (epoch, index)


def stream_batches(
    dataset: FlowDataset,
    batch_size: int,
    *,
    workers: int,
    start_step: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[FlowBatch]:
    """Yield the batches of steps `start_step`, `start_step` + 1, and so on, without end.

    They depend on the data set and its seed alone, not on the number of workers. The batches
    of all ranks, joined in order, are the batch of one process with `world_size` times the
    `batch_size`. With workers, a file that cannot be read raises the same error as without.
    There are never more workers than cores.
    """
    lowest = {"batch_size": (batch_size, 1), "workers": (workers, 0), "start_step": (start_step, 0)}
    for name, (value, least) in lowest.items():
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    if not 0 <= rank < world_size:
        raise InputError(f"rank must lie in [0, {world_size}), got {rank}")
    workers = usable_workers(workers)
    loader = DataLoader(
        _Batches(dataset),
        batch_size=None,  # `_Batches` makes whole batches itself
        sampler=batch_keys(dataset, batch_size, start_step, rank, world_size),
        num_workers=workers,
        # A forked worker inherits locks of threads that it does not have, and may wait for ever.
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=start_worker,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # else starting it would draw from the global one
    )
    return _raise_or_yield(loader)


def usable_workers(wanted: int) -> int:
    """As many workers as asked for, but no more than there are cores for this process."""
    if hasattr(os, "sched_getaffinity"):
        return min(wanted, len(os.sched_getaffinity(0)))
    return min(wanted, os.cpu_count() or 1)


def batch_keys(
    dataset: FlowDataset, batch_size: int, start_step: int = 0, rank: int = 0, world_size: int = 1
) -> Iterator[list[Key]]:
    """The keys of each batch: epoch follows epoch, whether or not batches end with them."""
    order = lru_cache(maxsize=2)(dataset.order)
    for step in count(start_step):
        first = (step * world_size + rank) * batch_size
        places = (divmod(place, len(dataset)) for place in range(first, first + batch_size))
        yield [(epoch, int(order(epoch)[index])) for epoch, index in places]


class _Batches(Dataset[dict[str, Tensor] | Exception]):
    """Batches as plain dicts, which torch can pin; errors a user can mend as values.

    Were they raised in a worker, torch would bury their message in a traceback.
    """

    def __init__(self, dataset: FlowDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, keys: list[Key]) -> dict[str, Tensor] | Exception:
        try:
            return vars(collate([self.dataset[key] for key in keys]))
        except (InputError, OSError) as error:
            return error


def _raise_or_yield(loader: DataLoader[dict[str, Tensor] | Exception]) -> Iterator[FlowBatch]:
    before = set(active_children())
    with _signals_held() if loader.num_workers else nullcontext():
        batches = iter(loader)  # starts the workers
    workers = set(active_children()) - before
    try:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield FlowBatch(**batch)
    finally:
        del batches  # ends the workers that listen
        for worker in workers:
            worker.kill()  # they never see SIGTERM, and one that is stuck would keep us from ending


@contextmanager
def _signals_held() -> Iterator[None]:
    """Processes started in here never see Ctrl-C and SIGTERM; this one sees them afterwards.

    A terminal or a scheduler sends these to the whole process group. The main process decides
    what they mean; workers end when it does.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    ensure_running()  # else it is started with the first worker, and lets the signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(_worker: int) -> None:
    """What a worker does first; each would repeat the warnings of the main process."""
    use_one_core()
    hide_library_warnings()


def use_one_core() -> None:
    """Keep this process to one core: there are as many workers as cores to use."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
