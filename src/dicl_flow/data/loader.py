"""An endless stream of training batches, reproducible from a seed and a step."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from itertools import count
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.resource_tracker import ensure_running
from threading import Thread

import cv2
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import InputError, hide_library_warnings
from .augmentation import FlowDataset
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

    They depend on the data set and its seed only, not on the number of workers, which is limited to
    the number of cores. The batches of all ranks, concatenated, are the batch of one process with
    `world_size` times the `batch_size`.
    """
    lowest = {"batch_size": (batch_size, 1), "workers": (workers, 0), "start_step": (start_step, 0)}
    for name, (value, least) in lowest.items():
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    if not 0 <= rank < world_size:
        raise InputError(f"rank must be in [0, {world_size}), got {rank}")
    workers = usable_workers(workers)
    loader = DataLoader(
        _Batches(dataset),
        batch_size=None,  # `_Batches` makes whole batches itself
        sampler=batch_keys(dataset, batch_size, start_step, rank, world_size),
        num_workers=workers,
        multiprocessing_context=_start_context() if workers else None,
        worker_init_fn=start_worker,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # otherwise the loader would draw from the global one
    )
    return _raise_or_yield(loader)


def usable_workers(wanted: int) -> int:
    """Limit a number of workers to the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return min(wanted, len(os.sched_getaffinity(0)))
    return min(wanted, os.cpu_count() or 1)


def _start_context() -> BaseContext:
    """Return how workers start: on Linux, forked from a process that has only imported this module.

    Forked from this process, a worker would inherit locks of threads that it does not have; a new
    process for each worker would import torch each time, which takes seconds.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def batch_keys(
    dataset: FlowDataset, batch_size: int, start_step: int = 0, rank: int = 0, world_size: int = 1
) -> Iterator[list[Key]]:
    """Yield the keys of each batch; a batch may span two epochs."""
    order = lru_cache(maxsize=2)(dataset.order)
    for step in count(start_step):
        first = (step * world_size + rank) * batch_size
        places = (divmod(place, len(dataset)) for place in range(first, first + batch_size))
        yield [(epoch, int(order(epoch)[index])) for epoch, index in places]


class _Batches(Dataset[dict[str, Tensor] | Exception]):
    """Batches as plain dicts, which torch can pin; errors of the input are returned as values.

    If they were raised in a worker, torch would hide their message in a traceback.
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
        del batches  # ends the workers that respond
        for worker in workers:
            worker.kill()  # SIGTERM is blocked there; a stuck worker would keep this process alive


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM, which reach the whole process group, in processes started here.

    This process gets them afterwards; workers end with it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    ensure_running()  # otherwise it would start with the first worker and unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(_worker: int) -> None:
    """Set up a worker: one core, no repetition of warnings, and an end with the main process."""
    use_one_core()
    hide_library_warnings()
    if (main := parent_process()) is not None:
        Thread(target=_end_with, args=(main.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """End when the main process is killed; torch's watchdog looks at the one that forked this."""
    wait([sentinel])
    os._exit(1)


def use_one_core() -> None:
    """Limit this process to one core: there may be as many workers as cores."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
