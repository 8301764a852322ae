"""Threads around the estimate: one decodes frames ahead, one writes results behind.

Only the estimating thread computes with torch, or several `Workers` that share its threads. More
threads than CPU cores slow down every operation.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from itertools import islice
from queue import Empty, Queue, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..files import Array

Item = TypeVar("Item")

_ROOM = 2  # items queued between two threads


def ahead(items: Generator[Item, None, None], room: int = _ROOM) -> Generator[Item, None, None]:
    """Produce `items` in another thread, at most `room` ahead of the consumer."""
    queue: Queue[tuple[Item | None, BaseException | None]] = Queue(room)
    stopped = Event()

    def work() -> None:
        try:
            with closing(items):
                for item in items:
                    queue.put((item, None))
                    if stopped.is_set():
                        return
            queue.put((None, StopIteration()))
        except BaseException as error:
            queue.put((None, error))

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield from _taken(queue)
    finally:
        stopped.set()
        while thread.is_alive():  # it may be waiting for room
            with suppress(Empty):
                queue.get_nowait()
            thread.join(0.01)


def begun_early(parts: Iterable[Iterator[Item]], room: int) -> Generator[Item, None, None]:
    """Yield the items of all parts; another thread takes the first `room` of the next part early.

    So whatever is slow at the start of a part, as opening a video, does not interrupt the items.
    """
    with ThreadPoolExecutor(1) as pool:
        at_hand: Iterator[Item] = iter(())
        for part in parts:
            first: SimpleQueue[Item | None] = SimpleQueue()
            begun = pool.submit(_begin, part, room, first)
            yield from at_hand
            at_hand = _continued(first, begun, part)
        yield from at_hand


def _begin(part: Iterator[Item], room: int, first: "SimpleQueue[Item | None]") -> None:
    try:
        for item in islice(part, room):
            first.put(item)
    finally:
        first.put(None)


def _continued(
    first: "SimpleQueue[Item | None]", begun: "Future[None]", rest: Iterator[Item]
) -> Iterator[Item]:
    while (item := first.get()) is not None:
        yield item
    begun.result()  # raises its error
    yield from rest


def _taken(queue: "Queue[tuple[Item | None, BaseException | None]]") -> Iterator[Item]:
    while True:
        item, error = queue.get()
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        assert item is not None
        yield item


class Workers:
    """Threads that estimate at the same time and share torch's threads; none before `start`."""

    def __init__(self) -> None:
        self.count = 0
        self._pool: ThreadPoolExecutor | None = None
        self._threads = self._share = 0  # of torch, in all and of each
        self._running: set[Future[Any]] = set()

    def start(self, count: int) -> None:
        """Start `count` threads, if there are none; a single one would only be in the way."""
        if self._pool is not None or count < 2:
            return
        self.count, self._threads = count, torch.get_num_threads()
        self._share = max(1, self._threads // count)
        torch.set_num_threads(self._share)  # of this thread, which draws meanwhile
        setting = (torch.set_num_threads, (self._share,))
        self._pool = ThreadPoolExecutor(count, "estimate", *setting)

    def close(self) -> None:
        """Wait for the calls that run, and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            torch.set_num_threads(self._threads)
            self.count, self._pool = 0, None

    def do(self, call: Callable[..., Item], *arguments: object) -> "Future[Item]":
        """Queue a call, which may wait for the results of earlier ones; with no thread, call."""
        if self._pool is None:
            return _called(call, *arguments)
        future = self._pool.submit(call, *arguments)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def alone(self, call: Callable[..., Item], *arguments: object) -> "Future[Item]":
        """Call when all others have ended, with all of torch's threads."""
        wait(tuple(self._running))
        torch.set_num_threads(self._threads)
        try:
            return _called(call, *arguments)
        finally:
            torch.set_num_threads(self._share)


def _called(call: Callable[..., Item], *arguments: object) -> "Future[Item]":
    """Call now; the future has the result or the error."""
    future: Future[Item] = Future()
    try:
        future.set_result(call(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


class Behind:
    """Executes calls in another thread, in order, with at most `room` of them queued.

    Leaving the `with` block waits for the rest. After an error, no more calls are executed; the
    error is raised by the next call of `do` or `check`, or at the end.
    """

    def __init__(self, room: int = _ROOM) -> None:
        self._queue: Queue[Callable[[], None] | None] = Queue(room)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._work, daemon=True)

    def __enter__(self) -> "Behind":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if kind is None:
            self.check()

    def do(self, work: Callable[[], None]) -> None:
        """Queue a call."""
        self.check()
        self._queue.put(work)

    def check(self) -> None:
        """Raise the error of an earlier call, if there was one."""
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            if self._error is None:
                try:
                    work()
                except BaseException as error:
                    self._error = error


def arriving(tensor: Tensor) -> Callable[[], Array]:
    """Start to copy a tensor to the host, and return a function that waits for it.

    The device goes ahead with the next pair; the function may be called in another thread.
    """
    if not tensor.is_cuda:
        return tensor.cpu().numpy
    with torch.cuda.device(tensor.device):
        host = tensor.to("cpu", non_blocking=True)
        arrived = torch.cuda.Event(blocking=True)  # who waits leaves the core to others
        arrived.record()

    def wait() -> Array:
        arrived.synchronize()
        return host.numpy()

    return wait
