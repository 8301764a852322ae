"""Computes segments: decodes ahead of the network, and writes behind it."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import InputError
from ..estimation.estimator import FlowSequence
from ..files import Array
from ..video.flows import Answer, Behind, Pairs, ahead, arriving, begun_early
from .decoding import Decoder, Pair, threads
from .job import Job
from .manifest import Row
from .scores import SmallFrames, describe, measure, to_grid
from .segments import Segment, is_finished
from .writing import Arriving, OpenSegment, Outcome, PartsFolder, SegmentFiles, Step, Watch, Writer

_SIZES = 4  # of frames, for which the network stays ready
_AHEAD = 8  # pairs that are decoded before they are needed, and as many of the next row
_BEHIND = 8  # flows that wait to be written, if only scores of them are

Begun: TypeAlias = tuple[Step, Answer | None]


class Worker:
    """A network on a device that computes segments, one process for each.

    `watch` is called with the number of flows whenever some are written. `most` limits the pairs
    of each row, to try a job.
    """

    def __init__(
        self,
        job: Job,
        device: str,
        watch: Watch = lambda flows: None,
        most: int | None = None,
    ) -> None:
        self.job, self._watch, self._most = job, watch, most
        self._storage = job.storage()
        self.estimator = job.load(device)
        how = {"backward": job.settings.occlusion, "sharpness": True}
        self._pairs = Pairs(FlowSequence(self.estimator, **how), sizes=_SIZES)
        self._keep = job.settings.min_confidence or 0.0
        self._measure = self.estimator.engine.record(partial(measure, min_confidence=self._keep))
        self._small_frames = SmallFrames(threads())
        on_cuda = self.estimator.device.type == "cuda"
        self._second_stream = torch.cuda.Stream(self.estimator.device) if on_cuda else None

    def run(self, segments: Iterable[Segment | None], *, again: bool = False) -> Iterator[Outcome]:
        """Compute segments in order; with `again`, finished ones too.

        If they have to be waited for, a None now and then lets outcomes be yielded meanwhile.
        Stopping the generator abandons the segment at hand.
        """
        outcomes: deque[Outcome] = deque()
        folders: deque[PartsFolder] = deque()  # some may be ahead of the network when the run ends
        rows = self._rows(segments, outcomes, folders, again=again)
        steps = ahead(begun_early(rows, _AHEAD), _AHEAD)
        settings = self.job.settings
        room = 2 if settings.fields or settings.flows else _BEHIND
        try:
            with closing(steps), Behind() as ends, Behind(room) as behind, self._pairs as pairs:
                writer = Writer(self._watch, outcomes, ends)
                for begun in pairs.in_turn(map(self._begin, steps)):
                    ends.check()
                    if begun is not None:
                        behind.do(self._estimated(*begun, writer))
                    while outcomes:
                        yield outcomes.popleft()
            yield from outcomes
        finally:
            for folder in folders:
                folder.release()

    def score(self, image1: Array, image2: Array) -> dict[str, Any]:
        """Return the scores of one pair."""
        with torch.inference_mode():
            numbers = self._measure(self._pairs.begin(image1, image2).result())
        return self._scores(numbers, (image1, image2))()

    def _rows(
        self,
        segments: Iterable[Segment | None],
        outcomes: "deque[Outcome]",
        folders: "deque[PartsFolder]",
        *,
        again: bool,
    ) -> Iterator[Iterator[Step]]:
        """The steps of each row, of which nothing is decoded yet."""
        settings = self.job.settings
        for segment in segments:
            if segment is None:
                yield iter([Step()])
                continue
            folder = PartsFolder(self._storage, segment.name)
            if not again and folder.held and is_finished(self._storage, segment.name):
                folder.release()
            if not folder.held:
                outcomes.append(Outcome(segment.name, None))
                continue
            while folders and not folders[0].held:
                folders.popleft()  # published
            folders.append(folder)
            opened = OpenSegment(folder, SegmentFiles(folder.path, segment.name, settings))
            *rows, last = Decoder(self.job, segment.rows, segment.first).rows()
            for row in rows:
                yield self._steps(opened, *row)
            yield chain(self._steps(opened, *last), [Step(opened)])

    def _steps(
        self, opened: OpenSegment, number: int, row: Row, pairs: Iterator[Pair]
    ) -> Generator[Step, None, None]:
        for pair in islice(pairs, self._most):
            yield Step(opened, pair)
        yield Step(opened, row=(number, row))

    def _begin(self, step: Step) -> Begun | None:
        """Begin to estimate the flow of a step, if it has one; None: there is nothing to do."""
        if step.segment is None:
            return None
        if step.pair is None or step.pair.images is None:
            return step, None
        return step, self._pairs.begin(*step.pair.images)

    def _estimated(self, step: Step, answer: Answer | None, writer: Writer) -> partial[None]:
        """Wait for the flow of a step, on the device; return what is left to do."""
        if step.pair is None:
            return partial(writer.end, step)
        if step.pair.images is None or answer is None:
            return partial(writer.write, step, None, None, None)
        settings = self.job.settings
        try:
            found = answer.result()
        except InputError as error:  # the network cannot take such frames
            broken = replace(step.pair, images=None, problem=str(error))
            return partial(writer.write, replace(step, pair=broken), None, None, None)
        with torch.inference_mode(), self._measuring(found):
            numbers = self._measure(found)
            field = to_grid(found, settings.grid, self._keep) if settings.fields else None
            flow = to_grid(found, 1, self._keep) if settings.flows else None
            scores = self._scores(numbers, step.pair.images)
            return partial(writer.write, step, scores, _sent(field), _sent(flow))

    def _scores(self, numbers: Tensor, images: tuple[Array, Array]) -> Callable[[], dict[str, Any]]:
        """Start what the scores are made of, and return a function that waits for it."""
        arrived, (first, second) = arriving(numbers), self._small_frames.begin(images)
        height, width, _ = images[0].shape
        return lambda: describe(arrived(), first.result(), second.result(), (height, width))

    def _measuring(self, answer: Tensor) -> AbstractContextManager[object]:
        """On CUDA, a second stream: many small kernels, while the network has the next pair."""
        if self._second_stream is None:
            return nullcontext()
        self._second_stream.wait_stream(torch.cuda.current_stream(answer.device))
        answer.record_stream(self._second_stream)  # its memory is free when that is done with it
        return torch.cuda.stream(self._second_stream)


def _sent(tensor: Tensor | None) -> Arriving | None:
    return None if tensor is None else arriving(tensor)


def run_segment(worker: Worker, segment: Segment, *, again: bool = False) -> Outcome:
    """Compute one segment."""
    (outcome,) = worker.run([segment], again=again)
    return outcome
