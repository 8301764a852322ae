"""One thread owns the estimator: it takes what waits, and estimates pairs of one size together."""

import asyncio
import ctypes
import os
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import isqrt, prod
from threading import Condition, Thread
from time import perf_counter
from typing import Any, TypeVar

import torch
from starlette.requests import ClientDisconnect, Request

from ..errors import InputError
from ..estimation.estimator import FlowEstimator, FlowResult
from ..files import Array, max_size
from .clips import check_sizes
from .limits import Admission, Counters, Limits, busy

Result = TypeVar("Result")
_RETURN_SECONDS = 10.0  # between returns of freed memory: each can take 0.1 s


@dataclass(eq=False)
class _Work:
    """What waits for the estimator: a call, or a pair."""

    function: Callable[[], Any] | None = None
    images: tuple[Array, ...] = ()
    backward: bool = False
    future: "Future[Any]" = field(default_factory=Future)

    @property
    def kind(self) -> tuple[object, ...]:
        """Pairs of one kind can be estimated in one batch."""
        return self.images[0].shape if self.images else None, self.backward


class FlowService:
    """The estimator of a server, used by one thread, and a few threads that decode and encode."""

    def __init__(self, estimator: FlowEstimator, limits: Limits | None = None) -> None:
        self.estimator, self.limits = estimator, limits or Limits()
        self._most = self.limits.batch or estimator.engine.pairs_together()
        self.admission, self.counters = Admission(self.limits.queue), Counters()
        self._waiting: deque[_Work] = deque()
        self._changed, self._closed = Condition(), False
        self._worker = Thread(target=self._run, name="estimator", daemon=True)
        self._helpers = ThreadPoolExecutor(os.cpu_count(), "helper")

    def start(self) -> None:
        """Start the threads."""
        self._worker.start()

    def close(self) -> None:
        """Finish what was accepted, then stop the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._worker.is_alive():
            self._worker.join()
        self._helpers.shutdown()

    def estimate(self, image1: Array, image2: Array, *, backward: bool) -> "Future[FlowResult]":
        """Estimate the flow of two (H, W, 3) frames of one size, in a batch with others."""
        check_sizes(image1, image2, "the two images")
        return self._put(_Work(images=(image1, image2), backward=backward))

    def call(self, function: Callable[[], Result]) -> "Future[Result]":
        """Let the thread of the estimator call a function: whatever computes with torch."""
        return self._put(_Work(function))

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Let another thread decode or encode, while the event loop serves others."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._helpers, function, *arguments)

    async def wait(self, request: Request, future: "Future[Result]") -> Result:
        """Wait for a result; drop it if the sender leaves or the time is over.

        The body of the request must have been read.
        """
        wrapped = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(request.receive())
        try:
            either: set[asyncio.Future[Any]] = {wrapped, gone}
            await asyncio.wait(either, timeout=self.limits.timeout, return_when=FIRST_COMPLETED)
            if wrapped.done():
                return wrapped.result()
            if gone.done():
                raise ClientDisconnect
            raise busy(f"the estimate took more than {self.limits.timeout:g} s; try again later")
        finally:
            gone.cancel()
            wrapped.cancel()

    @property
    def waiting(self) -> int:
        """How many pairs and calls wait for the estimator."""
        return len(self._waiting)

    def _put(self, work: _Work) -> "Future[Any]":
        with self._changed:
            if self._closed:
                raise busy("the server is shutting down")
            self._waiting.append(work)
            self._changed.notify()
        return work.future

    def _run(self) -> None:
        returned = perf_counter()
        while works := self._take():
            started = [work for work in works if work.future.set_running_or_notify_cancel()]
            if started and started[0].function is not None:
                try:
                    started[0].future.set_result(started[0].function())
                except BaseException as error:
                    started[0].future.set_exception(error)
            elif started:
                self._estimate(started)
            if perf_counter() - returned >= _RETURN_SECONDS:
                return_freed_memory()
                returned = perf_counter()

    def _take(self) -> list[_Work]:
        """Wait for work: a call, or pairs for one batch; nothing when the service is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            first = self._waiting[0]
            if first.function is not None:
                return [self._waiting.popleft()]
            alike = [work for work in self._waiting if work.kind == first.kind]
            taken = alike[: self._batch_size(first, len(alike))]
            self._waiting = deque(work for work in self._waiting if work not in taken)
            return taken

    def _batch_size(self, pair: _Work, available: int) -> int:
        """A power of two, so that few sizes are prepared for; at most what fits into memory."""
        size = 2 ** (min(available, self._most).bit_length() - 1)
        while size > 1 and not self._fits(size, pair):
            size //= 2
        return size

    def _fits(self, number: int, pair: _Work) -> bool:
        try:
            shape = (number, 3, *pair.images[0].shape[:2])
            return self.estimator.fits(torch.empty(shape, device="meta"))
        except InputError:
            return False

    def _estimate(self, pairs: list[_Work]) -> None:
        start = perf_counter()
        try:
            images1, images2 = ([pair.images[side] for pair in pairs] for side in (0, 1))
            results = self.estimator(images1, images2, backward=pairs[0].backward)
        except Exception as error:
            if len(pairs) == 1:
                pairs[0].future.set_exception(error)
            else:  # one may be to blame
                for pair in pairs:
                    self._estimate([pair])
            return
        self.counters.batch(len(pairs), perf_counter() - start)
        for pair, result in zip(pairs, results, strict=True):
            pair.future.set_result(result)


def return_freed_memory() -> None:
    """Give freed memory back to the system: malloc keeps more and more, as sizes of frames vary."""
    with suppress(AttributeError, OSError, TypeError):  # the C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


def check_seen(estimator: FlowEstimator, size: tuple[int, int], what: str) -> None:
    """Refuse frames (height, width) that the network sees with more pixels than may be uploaded.

    It pads them to multiples: a frame of 65535x1 becomes one of 65536x128. A square frame of the
    largest number of pixels is taken in any case.
    """
    feeding = estimator.plan.largest
    height, width = feeding.seen(size)
    side = max(feeding.scale, 1) * isqrt(int(max_size() * 1e6)) + feeding.multiple
    if prod((height, width)) > side**2:
        raise InputError(
            f"{what} would be padded from {size[1]}x{size[0]} to {width}x{height} pixels; "
            f"at most {max_size():g} million are taken"
        )


def service_of(request: Request) -> FlowService:
    """Return the service of the application that a request is for."""
    return request.app.state.service
