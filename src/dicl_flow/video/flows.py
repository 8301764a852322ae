"""From frames to flows."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from ..inputs import Array
from ..result import FlowResult, from_answer
from ..sequence import FlowSequence
from .frames import Frame, Frames


@dataclass(frozen=True)
class FrameFlow:
    """From a frame to the next: what every writer gets."""

    frame: Frame
    following: Frame
    answer: Tensor | None
    """What `FlowSequence.advance` gives, on the device; None where either frame is broken."""
    min_confidence: float | None = None
    """Flow of less confidence is unknown: NaN."""

    @property
    def problem(self) -> str:
        """Why there is no flow; empty where there is one."""
        return self.frame.problem or self.following.problem

    @cached_property
    def flow(self) -> Tensor:
        """(2, H, W), on the device."""
        assert self.answer is not None
        flow, confidence = self.answer[0, :2], self.answer[0, 2]
        if self.min_confidence is None:
            return flow
        return torch.where(confidence >= self.min_confidence, flow, torch.nan)

    @cached_property
    def result(self) -> FlowResult:
        """The same as arrays, brought from the device when a writer asks for it."""
        return self.whole if self.min_confidence is None else self.whole.masked(self.min_confidence)

    @cached_property
    def whole(self) -> FlowResult:
        """The result before anything became unknown."""
        assert self.answer is not None
        return from_answer(self.answer)[0]

    @property
    def images(self) -> tuple[Array, Array]:
        """Both frames, (H, W, 3) uint8 RGB."""
        assert self.frame.image is not None
        assert self.following.image is not None
        return self.frame.image, self.following.image


Flows: TypeAlias = Generator[FrameFlow, None, None]


def estimate_flows(
    frames: Frames, sequence: FlowSequence, min_confidence: float | None = None
) -> Flows:
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
                yield FrameFlow(last, frame, answer, min_confidence)
            last = frame
