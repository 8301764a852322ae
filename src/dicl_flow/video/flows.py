"""Estimate the flow from each frame of a video to the next."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from ..estimation.result import FlowResult, from_answer
from ..estimation.sequence import FlowSequence
from ..files import Array
from .cuts import is_cut
from .frames import Frame, Frames
from .threads import Workers


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
        whole = from_answer(self._shown)[0]
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
Answer: TypeAlias = Future[Tensor]


def estimate_flows(
    frames: Frames,
    sequence: FlowSequence,
    min_confidence: float | None = None,
    *,
    at_most: int | None = None,
) -> Flows:
    """Estimate from each frame to the next of its scene; a broken frame has no flow.

    Where that is faster, several pairs are estimated at a time, `at_most` so many.
    """
    waiting: deque[tuple[Frame, Frame, Answer | None]] = deque()

    def next_flow() -> FrameFlow:
        frame, following, answer = waiting.popleft()
        found = None if answer is None else answer.result()
        return FrameFlow(frame, following, found, min_confidence)

    with closing(frames), Workers() as workers:
        for pair in _begin(frames, _Sequences(sequence, workers, at_most)):
            waiting.append(pair)
            while len(waiting) > workers.count:
                yield next_flow()
        while waiting:
            yield next_flow()


def _begin(frames: Frames, sequences: "_Sequences") -> Iterator[tuple[Frame, Frame, Answer | None]]:
    """Yield each frame, the next of its scene, and the estimate that was begun for them."""
    last: Frame | None = None
    for frame in frames:
        follows = last is not None and last.scene == frame.scene
        if frame.image is None or not follows:
            sequences.restart()
        answer = None if frame.image is None else sequences.begin(frame.image)
        if last is not None and follows:
            yield last, frame, answer
        last = frame


class _Sequences:
    """A sequence for each size of frames: scenes may differ in size.

    The workers estimate the frames of the first size; others are rare.
    """

    def __init__(self, first: FlowSequence, workers: Workers, at_most: int | None) -> None:
        self._first, self._workers, self._at_most = first, workers, at_most
        self._by_size: dict[tuple[int, ...], FlowSequence] = {}
        self._last: Answer | None = None  # the previous frame, prepared by a worker

    def begin(self, image: Array) -> Answer | None:
        """Begin to estimate from the previous frame to this one; None for a first frame."""
        sequence = self._find(image)
        if sequence is self._first and self._workers.count:
            last, self._last = self._last, self._workers.do(sequence.prepare, image)
            return None if last is None else self._workers.do(_match, sequence, last, self._last)
        answer = sequence.advance(image)
        return None if answer is None else _done(answer)

    def restart(self) -> None:
        """Treat the next frame as the first of a scene."""
        self._last = None
        for sequence in self._by_size.values():
            sequence.restart()

    def _find(self, image: Array) -> FlowSequence:
        if not self._by_size:
            self._by_size[image.shape] = self._first
            at_once = self._first.at_once(image.shape[:2])
            self._workers.start(at_once if self._at_most is None else min(at_once, self._at_most))
        elif image.shape not in self._by_size:
            self._by_size[image.shape] = self._first.fresh()
        return self._by_size[image.shape]


def _match(sequence: FlowSequence, before: Answer, after: Answer) -> Tensor:
    return sequence.match(before.result(), after.result())


def _done(answer: Tensor) -> Answer:
    future: Answer = Future()
    future.set_result(answer)
    return future


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
