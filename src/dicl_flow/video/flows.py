"""Estimate the flow from each frame of a video to the next, between threads that read and write.

One thread decodes frames ahead, one writes results behind. Only the estimating thread computes with
torch, or several workers that share its threads: more threads than cores slow down everything.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from queue import Empty, Queue, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeAlias, TypeVar

import cv2
import numpy as np
import torch
from torch import Tensor

from ..estimation.estimator import FlowSequence
from ..estimation.result import FlowResult, unpack_result
from ..files import Array, to_uint8
from .frames import Frame, Frames

Answer: TypeAlias = Future[Tensor]
Item = TypeVar("Item")
_ROOM = 2  # items queued between two threads


def ahead(items: Generator[Item, None, None], room: int = _ROOM) -> Generator[Item, None, None]:
    """Produce `items` in another thread, at most `room` ahead of the consumer."""
    queue: Queue[Any] = Queue(room)
    stopped, end, errors = Event(), object(), list[BaseException]()

    def work() -> None:
        try:
            with closing(items):
                for item in items:
                    queue.put(item)
                    if stopped.is_set():
                        return
        except BaseException as error:
            errors.append(error)
        finally:
            queue.put(end)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield from iter(queue.get, end)
        if errors:
            raise errors[0]
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
            begun = pool.submit(_take_first, part, room, first)
            yield from at_hand
            at_hand = _continued(first, begun, part)
        yield from at_hand


def _take_first(part: Iterator[Item], room: int, first: "SimpleQueue[Item | None]") -> None:
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
    """Start to copy a tensor to the host; what is returned waits for it, in any thread."""
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


class Pairs:
    """The flow of pairs; a frame that two pairs share passes through the feature net once.

    There is a sequence for each size of frames, of the last `sizes` of them. In a `with` block,
    several pairs are estimated at a time where that is faster, but no more than `at_most`, by
    threads that share those of torch.
    """

    def __init__(
        self, first: FlowSequence, at_most: int | None = None, sizes: int | None = None
    ) -> None:
        self._first, self._at_most, self._sizes = first, at_most, sizes
        self._by_size: OrderedDict[tuple[int, ...], tuple[FlowSequence, int]] = OrderedDict()
        self._last: tuple[FlowSequence, Array, Answer] | None = None  # a frame, prepared
        self._open, self._workers = False, 0
        self._pool: ThreadPoolExecutor | None = None
        self._threads = self._share = 0  # of torch, in all and of each worker
        self._running: set[Future[Any]] = set()

    def __enter__(self) -> "Pairs":
        self._open = True
        return self

    def __exit__(self, *error: object) -> None:
        self._open, self._last = False, None
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            torch.set_num_threads(self._threads)
            self._workers, self._pool = 0, None

    def begin(self, image1: Array, image2: Array) -> Answer:
        """Begin to estimate a pair; the result is that of `FlowSequence.advance`."""
        sequence, at_once = self._find(image1)
        if self._open and self._pool is None and at_once > 1:
            self._start(at_once)
        do = self._alone if at_once < self._workers else self._do
        last, self._last = self._last, None
        if last is not None and last[0] is sequence and last[1] is image1:
            before = last[2]
        else:
            before = do(sequence.prepare, image1)
        after = do(sequence.prepare, image2)
        self._last = (sequence, image2, after)
        return do(lambda: sequence.match(before.result(), after.result()))

    def in_turn(self, begun: Iterable[Item]) -> Iterator[Item]:
        """Yield what was begun, in order, keeping the workers full.

        None stands for nothing: it comes at once, after all before it. If `begun` fails, what it
        gave before comes first.
        """
        waiting: deque[Item] = deque()
        try:
            for item in begun:
                waiting.append(item)
                while len(waiting) > (0 if item is None else self._workers):
                    yield waiting.popleft()
        except Exception:
            yield from waiting
            raise
        yield from waiting

    def _start(self, workers: int) -> None:
        self._workers, self._threads = workers, torch.get_num_threads()
        self._share = max(1, self._threads // workers)
        torch.set_num_threads(self._share)  # of this thread, which draws meanwhile
        self._pool = ThreadPoolExecutor(workers, "estimate", torch.set_num_threads, (self._share,))

    def _do(self, call: Callable[..., Item], *arguments: object) -> "Future[Item]":
        """Queue a call, which may wait for the results of earlier ones; with no thread, call."""
        if self._pool is None:
            return _called(call, *arguments)
        future = self._pool.submit(call, *arguments)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _alone(self, call: Callable[..., Item], *arguments: object) -> "Future[Item]":
        """Call when all others have ended, with all of torch's threads."""
        wait(tuple(self._running))
        torch.set_num_threads(self._threads)
        try:
            return _called(call, *arguments)
        finally:
            torch.set_num_threads(self._share)

    def _find(self, image: Array) -> tuple[FlowSequence, int]:
        """The sequence of a size, and how many pairs of it to estimate at a time."""
        if image.shape not in self._by_size:
            sequence = self._first.fresh() if self._by_size else self._first
            at_once = sequence.at_once((image.shape[0], image.shape[1]))
            if self._at_most is not None:
                at_once = min(at_once, self._at_most)
            self._by_size[image.shape] = (sequence, at_once)
            if self._sizes is not None and len(self._by_size) > self._sizes:
                self._by_size.popitem(last=False)
        self._by_size.move_to_end(image.shape)
        return self._by_size[image.shape]


def _called(call: Callable[..., Item], *arguments: object) -> "Future[Item]":
    """Call now; the future has the result or the error."""
    future: Future[Item] = Future()
    try:
        future.set_result(call(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


@dataclass(frozen=True)
class FrameFlow:
    """The flow from a frame to the next, as every writer gets it."""

    frame: Frame
    following: Frame
    estimate: Tensor | None
    """The result of `FlowSequence.advance`, on the device; None if either frame is broken."""
    min_confidence: float | None = None
    """Flow with less confidence becomes unknown (NaN)."""
    held: Tensor | None = None
    """The estimate of an earlier pair, shown instead because this pair is a cut."""

    @property
    def problem(self) -> str:
        """Why there is no flow; empty if there is one."""
        return self.frame.problem or self.following.problem

    def broken_after(self, number: int) -> list[Frame]:
        """Those of both frames that are broken, of a number above `number`."""
        return [f for f in (self.frame, self.following) if f.problem and f.number > number]

    @property
    def seconds(self) -> float | None:
        """The time from one frame to the other; None if they have no time."""
        if self.frame.time is None or self.following.time is None:
            return None
        return self.following.time - self.frame.time

    @cached_property
    def flow(self) -> Tensor:
        """(2, H, W), on the device."""
        flow, confidence = self._shown[0, :2], self._shown[0, 2]
        if self.min_confidence is None:
            return flow
        return torch.where(confidence >= self.min_confidence, flow, torch.nan)

    @cached_property
    def result(self) -> FlowResult:
        """The same as arrays, copied from the device when a writer asks for it."""
        whole = unpack_result(self._shown)[0]
        return whole if self.min_confidence is None else whole.masked(self.min_confidence)

    @cached_property
    def is_cut(self) -> bool:
        """Whether a new scene begins; judged by the whole flow: at a cut, none is confident."""
        assert self.estimate is not None
        estimated = self.estimate[0, :2].permute(1, 2, 0).cpu().numpy()
        return unexplained(*self.images, estimated) > CUT

    @property
    def images(self) -> tuple[Array, Array]:
        """Both frames, (H, W, 3) RGB."""
        assert self.frame.image is not None
        assert self.following.image is not None
        return self.frame.image, self.following.image

    @property
    def _shown(self) -> Tensor:
        """The estimate, or the one shown instead."""
        shown = self.estimate if self.held is None else self.held
        assert shown is not None
        return shown


Flows: TypeAlias = Generator[FrameFlow, None, None]


def estimate_flows(
    frames: Frames,
    sequence: FlowSequence,
    min_confidence: float | None = None,
    *,
    at_most: int | None = None,
    across_gaps: bool = False,
) -> Flows:
    """Estimate from each frame to the next of its scene, at most `at_most` pairs at a time.

    With `across_gaps`, the flow of a frame before broken ones leads to the frame after them.
    """
    with closing(frames), Pairs(sequence, at_most) as pairs:
        neighbours = _over_gaps(pairwise(frames)) if across_gaps else pairwise(frames)
        for frame, following, answer in pairs.in_turn(_begin(neighbours, pairs)):
            estimate = None if answer is None else answer.result()
            yield FrameFlow(frame, following, estimate, min_confidence)


Neighbours: TypeAlias = Iterator[tuple[Frame, Frame]]


def _over_gaps(neighbours: Neighbours) -> Neighbours:
    """Let the frame before broken ones be followed by the frame after them."""
    gap: list[tuple[Frame, Frame]] = []
    for frame, following in neighbours:
        if following.image is None and (gap or frame.image is not None):
            gap.append((frame, following))
            continue
        if gap and gap[0][0].scene == following.scene:
            gap[0] = (gap[0][0], following)
        yield from gap
        gap.clear()
        yield frame, following
    yield from gap


def _begin(neighbours: Neighbours, pairs: Pairs) -> Iterator[tuple[Frame, Frame, Answer | None]]:
    """Yield each frame, the next of its scene, and the estimate that was begun for them."""
    for frame, following in neighbours:
        if frame.scene == following.scene:
            if frame.image is None or following.image is None:
                yield frame, following, None
            else:
                yield frame, following, pairs.begin(frame.image, following.image)


CUTS = ("estimate", "blank", "hold")
"""The flow at a cut, a change of scene: as estimated, unknown, or that of the pair before."""


def settle_cuts(flows: Flows, cuts: str) -> Flows:
    """Make the flow of cuts unknown ("blank") or that of the pair before ("hold"; see `CUTS`)."""
    before: Tensor | None = None
    with closing(flows):
        for flow in flows:
            if flow.problem or not flow.is_cut:
                before = before if flow.problem else flow.estimate
                yield flow
            elif cuts == "hold" and before is not None:
                yield replace(flow, held=before)
            else:
                yield replace(flow, min_confidence=float("inf"))


_SMALL = 96  # px, the longer side of the compared pictures
_QUARTER = 4
CUT = 0.5
"""Unexplained share of the contrast at a cut: 0.05 to 0.25 within scenes, above 0.8 at cuts."""


def unexplained(image1: Array, image2: Array, flow: Array) -> float:
    """The difference between frame 2, warped by the flow, and frame 1, relative to its contrast.

    Compared small and in grey, where noise and fine texture do not matter.
    """
    vectors = _resized(flow, *small_size(*flow.shape[:2]))
    return small_unexplained(small_grey(image1), small_grey(image2), vectors, flow.shape[:2])


def small_size(height: int, width: int) -> tuple[int, int]:
    """(height, width) of the compared pictures of a frame."""
    scale = _scale(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def small_grey(image: Array) -> Array:
    """A frame as it is compared; a large one is quartered, which OpenCV does quickly, in colour."""
    height, width = small_size(*image.shape[:2])
    rows, columns = image.shape[0] // _QUARTER, image.shape[1] // _QUARTER
    if min(rows / height, columns / width) >= 2:
        whole = image[: rows * _QUARTER, : columns * _QUARTER]
        image = cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA)
    return _resized(cv2.cvtColor(to_uint8(image), cv2.COLOR_RGB2GRAY), height, width)


def small_unexplained(first: Array, second: Array, vectors: Array, size: tuple[int, ...]) -> float:
    """See `unexplained`; of small frames and a small flow, in px of frames of (height, width)."""
    height, width = first.shape
    x, y = np.moveaxis(vectors * np.float32(_scale(*size)), 2, 0)
    x, y = x + np.arange(width, dtype=np.float32), y + np.arange(height, dtype=np.float32)[:, None]
    seen = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)  # unknown flow is not
    again = cv2.remap(second, np.nan_to_num(x), np.nan_to_num(y), cv2.INTER_LINEAR)
    if not seen.any():
        return float("inf")
    contrast = np.abs(first - np.median(first)).mean() + 1  # plus one grey level, for blank frames
    return float(np.abs(first - again)[seen].mean() / contrast)


def _scale(height: int, width: int) -> float:
    return min(1.0, _SMALL / max(height, width))


def _resized(picture: Array, height: int, width: int) -> Array:
    small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32)
