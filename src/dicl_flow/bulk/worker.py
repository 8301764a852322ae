"""Computes segments: decodes ahead of the network, and writes behind it."""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..estimation.estimator import FlowEstimator
from ..estimation.sequence import FlowSequence
from ..files import Array
from ..video.threads import Behind, ahead, arriving
from .claims import Claim
from .decoding import Decoder, Pair
from .job import Job
from .manifest import Row
from .products import Products
from .scores import Describer, measure, to_grid
from .segments import Marker, Segment, is_finished

_SIZES = 4  # of frames, for which the network stays ready
_AHEAD = 4  # pairs that are decoded before they are needed


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


class _Open(NamedTuple):
    """A segment that is being computed."""

    claim: Claim
    products: Products


@dataclass(frozen=True)
class _Step:
    """What the decoding thread passes on: a pair, the end of a row, or of a segment."""

    open: _Open
    pair: Pair | None = None
    row: tuple[int, Row] | None = None


class Worker:
    """A network on a device that computes segments, one process for each.

    `watch` is called with the number of flows whenever some are written. `most` limits the pairs
    of each row, to try a job.
    """

    def __init__(
        self,
        job: Job,
        device: str,
        watch: Callable[[int], None] = lambda flows: None,
        most: int | None = None,
    ) -> None:
        self.job, self._watch, self._most = job, watch, most
        self._storage = job.storage()
        self.estimator = job.load(device)
        self._sequences = _Sequences(self.estimator, backward=job.settings.occlusion)
        self._keep = job.settings.min_confidence or 0.0
        self._measure = self.estimator.engine.record(partial(measure, min_confidence=self._keep))

    def run(self, segments: Iterable[Segment], *, again: bool = False) -> Iterator[Outcome]:
        """Compute segments in order; with `again`, finished ones too.

        Stopping the generator abandons the segment at hand.
        """
        outcomes: deque[Outcome] = deque()
        claims: deque[Claim] = deque()  # some may be ahead of the network when the run ends
        steps = ahead(self._decoded(segments, outcomes, claims, again=again), _AHEAD)
        writer = _Writer(self._watch, outcomes)
        try:
            with closing(steps), Behind() as behind:
                for step in steps:
                    behind.do(self._estimated(step, writer))
                    while outcomes:
                        yield outcomes.popleft()
            yield from outcomes
        finally:
            for claim in claims:
                claim.release()

    def score(self, image1: Array, image2: Array) -> dict[str, Any]:
        """Return the scores of one pair."""
        with torch.inference_mode():
            numbers = self._measure(self._sequences.flow(image1, image2))
        return Describer()(numbers.cpu().numpy(), image1, image2)

    def _decoded(
        self,
        segments: Iterable[Segment],
        outcomes: "deque[Outcome]",
        claims: "deque[Claim]",
        *,
        again: bool,
    ) -> Generator[_Step, None, None]:
        settings = self.job.settings
        for segment in segments:
            claim = Claim(self._storage, segment.name)
            if not again and claim.held and is_finished(self._storage, segment.name):
                claim.release()
            if not claim.held:
                outcomes.append(Outcome(segment.name, None))
                continue
            while claims and not claims[0].held:
                claims.popleft()  # published
            claims.append(claim)
            opened = _Open(claim, Products(claim.folder, segment.name, settings))
            for number, row, pairs in Decoder(self.job, segment.rows, segment.first).rows():
                for pair in islice(pairs, self._most):
                    yield _Step(opened, pair)
                yield _Step(opened, row=(number, row))
            yield _Step(opened)

    def _estimated(self, step: _Step, writer: "_Writer") -> partial[None]:
        """Estimate the flow of a step, on the device; return what is left to do."""
        if step.pair is None:
            return partial(writer.end, step)
        if step.pair.images is None:
            return partial(writer.write, step, None, None, None)
        settings = self.job.settings
        try:
            answer = self._sequences.flow(*step.pair.images)
        except InputError as error:  # the network cannot take such frames
            broken = replace(step.pair, images=None, problem=str(error))
            return partial(writer.write, replace(step, pair=broken), None, None, None)
        with torch.inference_mode():
            numbers = self._measure(answer)
            field = to_grid(answer, settings.grid, self._keep) if settings.fields else None
            flow = to_grid(answer, 1, self._keep) if settings.flows else None
            return partial(writer.write, step, _sent(numbers), _sent(field), _sent(flow))


class _Sequences:
    """The flow of pairs; a frame that two pairs share passes through the feature net once."""

    def __init__(self, estimator: FlowEstimator, *, backward: bool) -> None:
        self._make = partial(FlowSequence, estimator, backward=backward, sharpness=True)
        self._by_size: OrderedDict[tuple[int, ...], FlowSequence] = OrderedDict()
        self._last: Array | None = None

    def flow(self, image1: Array, image2: Array) -> Tensor:
        """Return the result of `FlowSequence.advance`."""
        sequence = self._find(image1.shape)
        last, self._last = self._last, None  # in case of an error
        if image1 is not last:
            sequence.restart()
            sequence.advance(image1)
        answer = sequence.advance(image2)
        self._last = image2
        assert answer is not None
        return answer

    def _find(self, size: tuple[int, ...]) -> FlowSequence:
        if size not in self._by_size:
            while len(self._by_size) >= _SIZES:
                self._by_size.popitem(last=False)
            self._by_size[size] = self._make()
        self._by_size.move_to_end(size)
        return self._by_size[size]


class _Writer:
    """The writing thread: waits for the device, describes flows, and ends segments."""

    def __init__(self, watch: Callable[[int], None], outcomes: "deque[Outcome]") -> None:
        self._watch, self._outcomes = watch, outcomes
        self._describe = Describer()
        self._segment_start = self._clip_start = perf_counter()
        self._slowest = ("", 0.0)

    def write(
        self,
        step: _Step,
        numbers: "_Arriving | None",
        field: "_Arriving | None",
        flow: "_Arriving | None",
    ) -> None:
        """Add a flow to the files of its segment."""
        assert step.pair is not None
        scores: dict[str, Any] = {}
        if numbers is not None:
            assert step.pair.images is not None
            scores = self._describe(numbers(), *step.pair.images)
        vectors = (None if sent is None else np.moveaxis(sent(), 0, 2) for sent in (field, flow))
        step.open.products.add(step.pair, scores, *vectors)
        self._watch(1)

    def end(self, step: _Step) -> None:
        """End a row, or a segment."""
        if step.row is not None:
            step.open.products.end_clip(*step.row)
            now = perf_counter()
            self._slowest = max(
                self._slowest, (step.row[1].name, now - self._clip_start), key=lambda clip: clip[1]
            )
            self._clip_start = now
            return
        files, marker = step.open.products.finish()
        step.open.claim.publish(files, marker)
        now = perf_counter()
        seconds, self._segment_start = now - self._segment_start, now
        self._outcomes.append(Outcome(marker["segment"], marker, seconds, self._slowest))
        self._slowest = ("", 0.0)


_Arriving = Callable[[], Array]
"""Waits until an array has arrived from the device."""


def _sent(tensor: Tensor | None) -> _Arriving | None:
    return None if tensor is None else arriving(tensor)


def run_segment(worker: Worker, segment: Segment, *, again: bool = False) -> Outcome:
    """Compute one segment."""
    (outcome,) = worker.run([segment], again=again)
    return outcome
