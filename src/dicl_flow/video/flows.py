"""From frames to flows, with what lies before and after done beside."""

from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from queue import Empty, Queue
from threading import Event, Thread
from typing import TypeAlias, TypeVar

from torch import Tensor

from ..inputs import Array
from ..result import FlowResult, to_result
from ..sequence import FlowSequence
from .frames import Frame, Frames

Item = TypeVar("Item")

_ROOM = 2  # items that wait between two threads


@dataclass(frozen=True)
class FrameFlow:
    """From a frame to the next: what every writer gets."""

    frame: Frame
    following: Frame
    answer: Tensor | None
    """Flow and confidence (1, 3, H, W), on the device; None where either frame is broken."""

    @property
    def problem(self) -> str:
        """Why there is no flow; empty where there is one."""
        return self.frame.problem or self.following.problem

    @property
    def flow(self) -> Tensor:
        """(2, H, W), on the device."""
        assert self.answer is not None
        return self.answer[0, :2]

    @cached_property
    def result(self) -> FlowResult:
        """The same as arrays, brought from the device when a writer asks for it."""
        assert self.answer is not None
        return to_result(*self.answer.split([2, 1], 1))[0]

    @property
    def images(self) -> tuple[Array, Array]:
        """Both frames, (H, W, 3) uint8 RGB."""
        assert self.frame.image is not None
        assert self.following.image is not None
        return self.frame.image, self.following.image


Flows: TypeAlias = Generator[FrameFlow, None, None]


def estimate_flows(frames: Frames, sequence: FlowSequence) -> Flows:
    """Pair each frame with the next; no flow reaches across a broken frame."""
    last: Frame | None = None
    with closing(frames):
        for frame in frames:
            answer = None
            if frame.image is None:
                sequence.restart()
            else:
                answer = sequence.advance(frame.image)
            if last is not None:
                yield FrameFlow(last, frame, answer)
            last = frame


def ahead(items: Generator[Item, None, None], room: int = _ROOM) -> Generator[Item, None, None]:
    """Let a thread of its own make `items`, at most `room` more than were taken."""
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
        while thread.is_alive():  # it may wait for room
            with suppress(Empty):
                queue.get_nowait()
            thread.join(0.01)


def _taken(queue: "Queue[tuple[Item | None, BaseException | None]]") -> Iterator[Item]:
    while True:
        item, error = queue.get()
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        assert item is not None
        yield item
