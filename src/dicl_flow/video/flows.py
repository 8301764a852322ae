"""From frames to flows."""

from collections.abc import Generator
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


@dataclass(frozen=True)
class FrameFlow:
    """From a frame to the next: what every writer gets."""

    frame: Frame
    following: Frame
    answer: Tensor | None
    """What `FlowSequence.advance` gives, on the device; None where either frame is broken."""
    min_confidence: float | None = None
    """Flow of less confidence is unknown: NaN."""
    held: Tensor | None = None
    """The answer of an earlier pair, which stands for this one: it is a cut."""

    @property
    def problem(self) -> str:
        """Why there is no flow; empty where there is one."""
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
        """The same as arrays, brought from the device when a writer asks for it."""
        whole = from_answer(self._shown)[0]
        return whole if self.min_confidence is None else whole.masked(self.min_confidence)

    @cached_property
    def is_cut(self) -> bool:
        """Whether a new scene begins, judged by all that was estimated: there no flow is sure."""
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
        """What was estimated, or what stands for it."""
        shown = self.answer if self.held is None else self.held
        assert shown is not None
        return shown


Flows: TypeAlias = Generator[FrameFlow, None, None]


def estimate_flows(
    frames: Frames, sequence: FlowSequence, min_confidence: float | None = None
) -> Flows:
    """Pair each frame with the next of its scene; no flow reaches across a broken frame."""
    last: Frame | None = None
    sequences = _Sequences(sequence)
    with closing(frames):
        for frame in frames:
            follows = last is not None and last.scene == frame.scene
            if frame.image is None or not follows:
                sequences.restart()
            answer = None if frame.image is None else sequences.advance(frame.image)
            if last is not None and follows:
                yield FrameFlow(last, frame, answer, min_confidence)
            last = frame


class _Sequences:
    """A sequence for each size of frames: scenes may differ in size."""

    def __init__(self, first: FlowSequence) -> None:
        self._first = first
        self._by_size: dict[tuple[int, ...], FlowSequence] = {}

    def advance(self, image: Array) -> Tensor | None:
        """What `FlowSequence.advance` gives."""
        if not self._by_size:
            self._by_size[image.shape] = self._first
        elif image.shape not in self._by_size:
            self._by_size[image.shape] = self._first.fresh()
        return self._by_size[image.shape].advance(image)

    def restart(self) -> None:
        """The next frame is a first one."""
        for sequence in self._by_size.values():
            sequence.restart()


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
