"""Behind the network: one thread describes flows, another publishes segments."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..files import Array
from ..video.threads import Behind
from .claims import Claim
from .decoding import Pair
from .manifest import Row
from .products import Products
from .segments import Marker

Arriving = Callable[[], Array]
"""Waits until an array has arrived from the device."""


@dataclass(frozen=True)
class Outcome:
    """What became of a segment."""

    segment: str
    marker: Marker | None
    """None if another process computes it, or has just finished it."""
    seconds: float = 0.0
    """From the end of the previous segment to the end of this one."""
    slowest: tuple[str, float] = ("", 0.0)
    """The clip that took longest, and its seconds."""


class Open(NamedTuple):
    """A segment that is being computed."""

    claim: Claim
    products: Products


@dataclass(frozen=True)
class Step:
    """What the decoding thread passes on: a pair, the end of a row, or of a segment; or nothing."""

    open: Open | None = None
    pair: Pair | None = None
    row: tuple[int, Row] | None = None


class Writer:
    """The writing thread: waits for the device, and describes flows.

    Segments are published by the thread of `ends`: on a slow drive that takes as long as several
    flows, for which the device would have to wait.
    """

    def __init__(
        self, watch: Callable[[int], None], outcomes: "deque[Outcome]", ends: Behind
    ) -> None:
        self._watch, self._outcomes, self._ends = watch, outcomes, ends
        self._segment_start = self._clip_start = perf_counter()
        self._slowest = ("", 0.0)

    def write(
        self,
        step: Step,
        scores: Callable[[], dict[str, Any]] | None,
        field: Arriving | None,
        flow: Arriving | None,
    ) -> None:
        """Add a flow to the files of its segment."""
        assert step.open is not None
        assert step.pair is not None
        entries = {} if scores is None else scores()
        vectors = (None if sent is None else np.moveaxis(sent(), 0, 2) for sent in (field, flow))
        step.open.products.add(step.pair, entries, *vectors)
        self._watch(1)

    def end(self, step: Step) -> None:
        """End a row, or a segment."""
        assert step.open is not None
        if step.row is not None:
            step.open.products.end_clip(*step.row)
            now = perf_counter()
            self._slowest = max(
                self._slowest, (step.row[1].name, now - self._clip_start), key=lambda clip: clip[1]
            )
            self._clip_start = now
            return
        self._ends.do(partial(self._publish, step.open, self._slowest))
        self._slowest = ("", 0.0)

    def _publish(self, segment: Open, slowest: tuple[str, float]) -> None:
        files, marker = segment.products.finish()
        segment.claim.publish(files, marker)
        now = perf_counter()
        seconds, self._segment_start = now - self._segment_start, now
        self._outcomes.append(Outcome(marker["segment"], marker, seconds, slowest))
