"""Estimate the flow from each frame of a video to the next."""

from collections import OrderedDict, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from ..estimation.estimator import FlowSequence
from ..estimation.result import FlowResult, unpack_result
from ..files import Array
from .cuts import is_cut
from .frames import Frame, Frames
from .threads import Workers

Answer: TypeAlias = Future[Tensor]
Item = TypeVar("Item")


class Pairs:
    """The flow of pairs; a frame that two pairs share passes through the feature net once.

    There is a sequence for each size of frames, of the last `sizes` of them. In a `with` block,
    several pairs are estimated at a time where that is faster, but no more than `at_most`.
    """

    def __init__(
        self, first: FlowSequence, at_most: int | None = None, sizes: int | None = None
    ) -> None:
        self._first, self._at_most, self._sizes = first, at_most, sizes
        self._by_size: OrderedDict[tuple[int, ...], tuple[FlowSequence, int]] = OrderedDict()
        self._last: tuple[FlowSequence, Array, Answer] | None = None  # a frame, prepared
        self._workers, self._open = Workers(), False

    def __enter__(self) -> "Pairs":
        self._open = True
        return self

    def __exit__(self, *error: object) -> None:
        self._open, self._last = False, None
        self._workers.close()

    def begin(self, image1: Array, image2: Array) -> Answer:
        """Begin to estimate a pair; the result is that of `FlowSequence.advance`."""
        sequence, at_once = self._find(image1)
        if self._open:
            self._workers.start(at_once)
        do = self._workers.alone if at_once < self._workers.count else self._workers.do
        last, self._last = self._last, None
        if last is not None and last[0] is sequence and last[1] is image1:
            before = last[2]
        else:
            before = do(sequence.prepare, image1)
        after = do(sequence.prepare, image2)
        self._last = (sequence, image2, after)
        return do(_match, sequence, before, after)

    def in_turn(self, begun: Iterable[Item]) -> Iterator[Item]:
        """Yield what was begun, in order, keeping the workers full.

        None stands for nothing: it comes at once, after all before it. If `begun` fails, what it
        gave before comes first.
        """
        waiting: deque[Item] = deque()
        try:
            for item in begun:
                waiting.append(item)
                while len(waiting) > (0 if item is None else self._workers.count):
                    yield waiting.popleft()
        except Exception:
            yield from waiting
            raise
        yield from waiting

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


def _match(sequence: FlowSequence, before: Answer, after: Answer) -> Tensor:
    return sequence.match(before.result(), after.result())


@dataclass(frozen=True)
class FrameFlow:
    """The flow from a frame to the next, as every writer gets it."""

    frame: Frame
    following: Frame
    answer: Tensor | None
    """The result of `FlowSequence.advance`, on the device; None if either frame is broken."""
    min_confidence: float | None = None
    """Flow with less confidence becomes unknown (NaN)."""
    held: Tensor | None = None
    """The answer of an earlier pair, shown instead because this pair is a cut."""

    @property
    def problem(self) -> str:
        """Why there is no flow; empty if there is one."""
        return self.frame.problem or self.following.problem

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
        assert self.answer is not None
        estimated = self.answer[0, :2].permute(1, 2, 0).cpu().numpy()
        return is_cut(*self.images, estimated)

    @property
    def images(self) -> tuple[Array, Array]:
        """Both frames, (H, W, 3) RGB."""
        assert self.frame.image is not None
        assert self.following.image is not None
        return self.frame.image, self.following.image

    @property
    def _shown(self) -> Tensor:
        """The estimate, or the one shown instead."""
        shown = self.answer if self.held is None else self.held
        assert shown is not None
        return shown


Flows: TypeAlias = Generator[FrameFlow, None, None]


def estimate_flows(
    frames: Frames,
    sequence: FlowSequence,
    min_confidence: float | None = None,
    *,
    at_most: int | None = None,
) -> Flows:
    """Estimate from each frame to the next of its scene; a broken frame has no flow.

    Where that is faster, several pairs are estimated at a time, but no more than `at_most`.
    """
    with closing(frames), Pairs(sequence, at_most) as pairs:
        for frame, following, answer in pairs.in_turn(_begin(frames, pairs)):
            found = None if answer is None else answer.result()
            yield FrameFlow(frame, following, found, min_confidence)


def _begin(frames: Frames, pairs: Pairs) -> Iterator[tuple[Frame, Frame, Answer | None]]:
    """Yield each frame, the next of its scene, and the estimate that was begun for them."""
    last: Frame | None = None
    for frame in frames:
        if last is not None and last.scene == frame.scene:
            if last.image is None or frame.image is None:
                yield last, frame, None
            else:
                yield last, frame, pairs.begin(last.image, frame.image)
        last = frame


def settle_cuts(flows: Flows, cuts: str) -> Flows:
    """Make the flow of cuts unknown ("blank") or that of the pair before ("hold"; see `CUTS`)."""
    before: Tensor | None = None
    with closing(flows):
        for flow in flows:
            if flow.problem or not flow.is_cut:
                before = before if flow.problem else flow.answer
                yield flow
            elif cuts == "hold" and before is not None:
                yield replace(flow, held=before)
            else:
                yield replace(flow, min_confidence=float("inf"))
