"""From which frames a flow leads to the present one, and these flows, both ways.

A short interval is matched easily but must be chained often, which drifts; a long one does not
drift but may fail. All are computed, and each point takes the best (`chains`).
"""

from collections.abc import Collection, Iterable, Sequence
from operator import index

import torch
from torch import Tensor

from ..errors import InputError
from ..estimation.estimator import FlowSequence
from ..estimation.inputs import Image

INTERVALS = (1, 2, 4, 8, 16, 32)
"""Frames that a flow spans, besides the direct flow from the reference."""


def check_intervals(intervals: Sequence[int], *, direct: bool) -> tuple[int, ...]:
    """Return the intervals in order, each once; refuse those that leave frames unreached."""
    try:
        ordered = tuple(sorted({index(interval) for interval in intervals}))
    except TypeError:
        raise InputError(f"`intervals` must be whole numbers, got {intervals!r}") from None
    if any(interval < 1 for interval in ordered):
        raise InputError(f"`intervals` must be at least 1, got {ordered[0]}")
    if not direct and 1 not in ordered:
        raise InputError("`intervals` must contain 1, unless direct flows reach every frame")
    return ordered


class RecentFrames:
    """The prepared frames from which flows to the present one start.

    These are as many of the last ones as the longest interval spans, and the `references`.
    Numbers may rise or fall; an interval is the difference of two.
    """

    def __init__(self, sequence: FlowSequence, intervals: Sequence[int]) -> None:
        self.sequence, self.intervals = sequence, intervals
        self._prepared: dict[int, Tensor] = {}  # by number, in the order of time
        self._references: Collection[int] = ()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the frames that are kept, in the order of time."""
        return list(self._prepared)

    @property
    def latest(self) -> int | None:
        """The number of the frame that was added last."""
        return next(reversed(self._prepared), None)

    def starts(self, number: int) -> list[int]:
        """The kept frames from which an interval leads to frame `number`.

        The latest frame counts as that before: others may have been lost between them.
        """
        found = [n for n in self._prepared if abs(number - n) in self.intervals]
        if 1 in self.intervals and self.latest is not None and self.latest not in found:
            found.append(self.latest)
        return found

    def flows(self, frame: Tensor, starts: Iterable[int]) -> dict[int, Tensor]:
        """By their start: packed estimates (1, 6, H, W) to a prepared frame, both ways."""
        numbers = list(dict.fromkeys(starts))
        pairs = [(self._prepared[number], frame) for number in numbers]
        return dict(zip(numbers, self.sequence.match_pairs(pairs), strict=True))

    @torch.inference_mode()
    def prepare(self, frame: Image) -> Tensor:
        """A frame as `flows` and `add` take it."""
        return self.sequence.prepare(frame)

    def add(self, number: int, frame: Tensor) -> None:
        """Keep a prepared frame; forget those that no interval reaches from the next one on."""
        self._prepared[number] = frame
        reach = max(self.intervals, default=1)
        for old in self.numbers:
            if abs(number - old) >= reach and old != number and old not in self._references:
                del self._prepared[old]

    def keep_references(self, numbers: Collection[int]) -> None:
        """From now on, keep these frames for direct flows, however old; others may go."""
        self._references = frozenset(numbers)

    def clear(self) -> None:
        """Forget all: a new scene begins."""
        self._prepared.clear()
