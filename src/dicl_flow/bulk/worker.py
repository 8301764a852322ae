"""Computes segments: decodes ahead of the network, measures its flows, and writes behind it."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from math import atan2, degrees, hypot, isfinite, isqrt
from operator import eq, is_
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from ..estimation.confidence import find_occlusion
from ..estimation.estimator import FlowSequence
from ..estimation.result import unpack
from ..files import Array, decode_image, to_uint8
from ..video import Shot
from ..video.flows import (
    CUT,
    Answer,
    Behind,
    Pairs,
    ahead,
    arriving,
    begun_early,
    small_grey,
    small_size,
    small_unexplained,
)
from ..video.frames import (
    Frame,
    Moment,
    Selection,
    Source,
    capture,
    images,
    open_source,
    video_from,
)
from .job import Job, Segment
from .manifest import Row
from .storage import on_this_machine, read_input
from .writing import LENGTHS, Outcome, Pair, SegmentFiles, Step, Watch, Writer

_THREADS = ThreadPoolExecutor(min(8, os.cpu_count() or 1))  # started when they are needed
_AHEAD = 8  # pairs and images that are read before they are needed, and pairs of the next row
_SIZES = 4  # of frames, for which the network stays ready
_BEHIND = 8  # flows that wait to be written, if only scores of them are
_MOVING = 0.5  # px, as in the statistics of a video
_SHARES = (0.5, 0.95)  # of which the median and the percentile are the places
_SAMPLES = 2**16  # lengths that are sorted, at least, if a frame has more: a GPU sorts slowly
_FINER = 4  # how much finer than the small flow the pixels are that it is the mean of
_NUMBERS = 11  # in front of the small flow


class SharedCalls:
    """Calls a function in other threads, once for a frame that consecutive pairs share."""

    def __init__(self, call: Callable[[Any], Array], same: Callable[[Any, Any], bool]) -> None:
        self._call, self._same = call, same
        self._last: tuple[Any, Future[Array]] | None = None

    def submit(self, argument: Any) -> "Future[Array]":
        """Return the result for an argument, which is being computed."""
        if self._last is None or not self._same(self._last[0], argument):
            self._last = argument, _THREADS.submit(self._call, argument)
        return self._last[1]


class Decoder:
    """Reads the rows of a segment, the first of which has the number `first`, in order."""

    def __init__(self, job: Job, rows: Sequence[Row], first: int) -> None:
        self._place, self._decoder = job.place, job.settings.decoder
        self._rows, self._first = rows, first
        self._coming = iter(row for row in rows if not row.path)
        self._reading: deque[list[Future[Array]]] = deque()
        self._images = SharedCalls(self._image, eq)

    def rows(self) -> Iterator[tuple[int, Row, Generator[Pair, None, None]]]:
        """Yield each row with its number and its pairs, of which there is at least one.

        One thread takes the first pairs of all rows, in order; another may take the rest of a clip.
        """
        for number, row in enumerate(self._rows, start=self._first):
            yield number, row, self._pairs(number, row)

    def _pairs(self, number: int, row: Row) -> Generator[Pair, None, None]:
        made = 0
        try:
            for pair in self._clip(number, row) if row.path else self._pair(number, row):
                yield pair
                made += 1
            if not made:
                raise InputError("a flow needs at least two frames")
        except Exception as error:  # whatever is wrong with one item, the others are computed
            frames = (row.image1, row.image2)
            yield Pair(number, made, row.name, *frames, problem=_sentence(error))

    def _pair(self, number: int, row: Row) -> Iterator[Pair]:
        while len(self._reading) < _AHEAD and (coming := next(self._coming, None)):
            self._reading.append([*map(self._images.submit, (coming.image1, coming.image2))])
        image1, image2 = (future.result() for future in self._reading.popleft())
        if image1.shape != image2.shape:
            sizes = [f"{image.shape[1]}x{image.shape[0]}" for image in (image1, image2)]
            raise InputError(f"the two images must have one size, got {' and '.join(sizes)}")
        yield Pair(number, 0, row.name, row.image1, row.image2, images=(image1, image2))

    def _image(self, name: str) -> Array:
        place = self._place(name)
        with _calling_it(name, place):
            return to_uint8(decode_image(read_input(place), name))

    def _clip(self, number: int, row: Row) -> Iterator[Pair]:
        if row.stride and not row.stride.isdecimal():
            raise InputError(f"stride is a number of frames, got {row.stride!r}")
        start, end = Moment.parse("start", row.start or None), Moment.parse("end", row.end or None)
        selection = Selection(start, end, int(row.stride or 1), on_error="skip")
        with (
            on_this_machine(self._place(row.path)) as path,
            _calling_it(row.path, path),
            closing(self._frames(path, selection)) as frames,
        ):
            both = (two for two in pairwise(frames) if two[0].scene == two[1].scene)
            for made, (frame, following) in enumerate(both):
                about = (row.name, frame.name, following.name, frame.time)
                if frame.image is None or following.image is None:
                    problem = (frame.problem or following.problem).replace(path, row.path)
                    yield Pair(number, made, *about, problem=problem)
                else:
                    yield Pair(number, made, *about, images=(frame.image, following.image))

    def _frames(self, path: str, selection: Selection) -> Generator[Frame, None, None]:
        if self._decoder == "opencv" and Path(path).is_file():
            return selection.frames(capture(path, live=False))
        start = selection.start
        if start is not None and start.in_seconds and Path(path).is_file():
            return selection.frames(video_from(Path(path), start.value))
        source = open_source(path)
        if not source.files:
            return selection.frames(source)
        if selection.in_seconds:
            raise InputError("images have no time; give start and end as frame numbers")
        chosen = images(list(selection.chosen(source.files)), Path(path))
        return Selection(on_error="skip").frames(_read_ahead(chosen))


def _read_ahead(source: Source) -> Source:
    """The same images, read by several threads."""

    def shots() -> Iterator[Shot]:
        waiting: deque[Shot] = deque()
        for shot in source.shots():
            waiting.append(shot._replace(read=_THREADS.submit(shot.read).result))
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting

    return replace(source, shots=shots)


@contextmanager
def _calling_it(name: str, path: str) -> Iterator[None]:
    """Let errors say what the manifest says: a copy has another name each time."""
    try:
        yield
    except (InputError, OSError) as error:
        raise InputError(_sentence(error).replace(path, name)) from None


def _sentence(error: Exception) -> str:
    """One line; the system's message with its file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def find_pair(job: Job, row: Row, key: str) -> Pair | None:
    """Read a pair again by its key."""
    place, number = map(int, key.split("_"))
    ((_, _, pairs),) = Decoder(job, [row], place).rows()
    return next((pair for pair in pairs if pair.number == number), None)


class Worker:
    """Computes segments on a device; `most` limits the pairs of each row, to try a job."""

    def __init__(
        self, job: Job, device: str, watch: Watch = lambda flows: None, most: int | None = None
    ) -> None:
        self.job, self._watch, self._most = job, watch, most
        self.estimator = job.load(device)
        how = {"backward": job.settings.occlusion, "sharpness": True}
        self._pairs = Pairs(FlowSequence(self.estimator, **how), sizes=_SIZES)
        self._keep = job.settings.min_confidence or 0.0
        self._measure = self.estimator.engine.record(partial(measure, min_confidence=self._keep))
        self._small_frames = SharedCalls(small_grey, is_)
        on_cuda = self.estimator.device.type == "cuda"
        self._second_stream = torch.cuda.Stream(self.estimator.device) if on_cuda else None

    def run(self, segments: Iterable[Segment | None], *, again: bool = False) -> Iterator[Outcome]:
        """Compute segments in order; with `again`, finished ones too.

        A None among them lets outcomes be yielded while one waits for segments. Stopping the
        generator abandons the segment at hand.
        """
        settings, ends = self.job.settings, Behind()
        writer = Writer(self.job, self._watch, ends)
        steps = ahead(begun_early(self._rows(segments, writer, again=again), _AHEAD), _AHEAD)
        room = 2 if settings.fields or settings.flows else _BEHIND
        try:
            with closing(steps), ends, Behind(room) as behind, self._pairs as pairs:
                for begun in pairs.in_turn(map(self._begin, steps)):
                    ends.check()
                    if begun is not None:
                        behind.do(self._estimated(*begun, writer))
                    while writer.outcomes:
                        yield writer.outcomes.popleft()
            yield from writer.outcomes
        finally:
            writer.release()

    def score(self, image1: Array, image2: Array) -> dict[str, Any]:
        """Return the scores of one pair."""
        with torch.inference_mode():
            numbers = self._measure(self._pairs.begin(image1, image2).result())
        return self._scores(numbers, (image1, image2))()

    def _rows(
        self, segments: Iterable[Segment | None], writer: Writer, *, again: bool
    ) -> Iterator[Iterator[Step]]:
        """The steps of each row, of which nothing is decoded yet."""
        for segment in segments:
            if segment is None:
                yield iter([Step()])
            elif files := writer.begin(segment.name, again=again):
                *rows, last = Decoder(self.job, segment.rows, segment.first).rows()
                for row in rows:
                    yield self._steps(files, *row)
                yield chain(self._steps(files, *last), [Step(files)])

    def _steps(
        self, files: SegmentFiles, number: int, row: Row, pairs: Iterator[Pair]
    ) -> Generator[Step, None, None]:
        for pair in islice(pairs, self._most):
            yield Step(files, pair)
        yield Step(files, row=(number, row))

    def _begin(self, step: Step) -> tuple[Step, Answer | None] | None:
        """Begin to estimate the flow of a step, if it has one; None: there is nothing to do."""
        if step.files is None:
            return None
        if step.pair is None or step.pair.images is None:
            return step, None
        return step, self._pairs.begin(*step.pair.images)

    def _estimated(self, step: Step, answer: Answer | None, writer: Writer) -> partial[None]:
        """Wait for the flow of a step, on the device; return what is left to do."""
        assert step.files is not None
        if step.pair is None:
            return partial(writer.end, step.files, step.row)
        write = partial(writer.write, step.files)
        if step.pair.images is None or answer is None:
            return partial(write, step.pair)
        settings = self.job.settings
        try:
            packed = answer.result()
        except InputError as error:  # the network cannot take such frames
            return partial(write, replace(step.pair, images=None, problem=str(error)))
        with torch.inference_mode(), self._measuring(packed):
            scores = self._scores(self._measure(packed), step.pair.images)
            field = (
                arriving(to_grid(packed, settings.grid, self._keep)) if settings.fields else None
            )
            flow = arriving(to_grid(packed, 1, self._keep)) if settings.flows else None
            return partial(write, step.pair, scores, field, flow)

    def _scores(self, numbers: Tensor, images: tuple[Array, Array]) -> Callable[[], dict[str, Any]]:
        """Start what the scores are made of, and return a function that waits for it."""
        arrived, (first, second) = arriving(numbers), map(self._small_frames.submit, images)
        height, width, _ = images[0].shape
        return lambda: describe(arrived(), first.result(), second.result(), (height, width))

    def _measuring(self, answer: Tensor) -> AbstractContextManager[object]:
        """On CUDA, a second stream: many small kernels, while the network has the next pair."""
        if self._second_stream is None:
            return nullcontext()
        self._second_stream.wait_stream(torch.cuda.current_stream(answer.device))
        answer.record_stream(self._second_stream)  # its memory is free when that is done with it
        return torch.cuda.stream(self._second_stream)


def run_segment(worker: Worker, segment: Segment, *, again: bool = False) -> Outcome:
    """Compute one segment."""
    (outcome,) = worker.run([segment], again=again)
    return outcome


def measure(answer: Tensor, min_confidence: float = 0.0) -> Tensor:
    """Packed estimate (1, 4 or 8, H, W) -> the numbers and the small flow for `describe`.

    One tensor, because a recording has one output, and without waiting for the device.
    """
    forward, *backward = unpack(answer)
    values, confidence = answer[0, :4], answer[0, 2]  # flow, confidence, sharpness
    small, length = _small(values[:2]), torch.hypot(values[0], values[1])
    pixels = length.numel()
    count = length.new_full((1,), pixels)
    if min_confidence > 0:
        known = confidence >= min_confidence
        quantiles = _known_quantiles(length, known)
        count, length = known.sum()[None], length * known
        values = torch.cat([values[:2] * known, values[2:]])
    else:
        quantiles = _quantiles(length)
    occluded = length.new_full((1,), torch.nan)
    if backward:
        occluded = find_occlusion(forward.flow, backward[0].flow).float().mean()[None]
    sums = values.sum((1, 2))
    lengths = torch.stack([length.sum(), (length > _MOVING).sum()])
    means = torch.cat([lengths[:1], sums[:2], lengths[1:]]) / count
    others = [length.amax()[None], count / pixels, sums[2:] / pixels, occluded]
    return torch.cat([means, quantiles, *others, small.flatten()])


def _small(flow: Tensor) -> Tensor:
    """(2, H, W) -> the small flow by which cuts are found; of large frames, of every n-th pixel."""
    height, width = small_size(*flow.shape[1:])
    step = max(1, min(flow.shape[1] // height, flow.shape[2] // width) // _FINER)
    return F.interpolate(_every(step, flow)[None], (height, width), mode="area")


def _quantiles(length: Tensor) -> Tensor:
    """Median and 95th percentile of lengths; of large frames, at every n-th pixel."""
    ordered = _sampled(length).flatten().sort().values
    quantiles = []
    for share in _SHARES:
        low, part = divmod((ordered.numel() - 1) * share, 1)
        two = ordered[int(low) : int(low) + 2]
        quantiles.append(torch.lerp(two[:1], two[-1:], part))
    return torch.cat(quantiles)


def _known_quantiles(length: Tensor, known: Tensor) -> Tensor:
    """The same of known lengths only; how many there are is not known on the host."""
    known = _sampled(known)
    last = (known.sum() - 1).clamp(min=0)
    ordered = _sampled(length).masked_fill(~known, torch.inf).flatten().sort().values
    place = torch.stack([last * share for share in _SHARES])
    low = place.floor().long()
    high = (low + 1).clamp(max=ordered.numel() - 1)
    below, above = ordered[low], ordered[high]
    part = place - low
    return torch.where(part > 0, below + (above - below) * part, below)


def _sampled(values: Tensor) -> Tensor:
    return _every(max(1, isqrt(values.numel() // _SAMPLES)), values)


def _every(step: int, values: Tensor) -> Tensor:
    """Every `step`-th pixel in both directions, from half a step on."""
    return values[..., step // 2 :: step, step // 2 :: step]


def describe(numbers: Array, first: Array, second: Array, size: tuple[int, int]) -> dict[str, Any]:
    """Numbers, and small frames of (height, width) `size` -> entries that do not name the flow."""
    height, width = size
    mean, x, y, moving, median, p95, longest, density, *scores = map(float, numbers[:_NUMBERS])
    entries: dict[str, Any] = {"width": width, "height": height}
    if density:
        diagonal = hypot(width, height)
        for name, value in zip(LENGTHS, (mean, median, p95, longest), strict=True):
            entries[f"{name}_length"], entries[f"{name}_share"] = value, value / diagonal
        entries |= {"direction": degrees(atan2(y, x)), "moving_share": moving}
    vectors = np.moveaxis(numbers[_NUMBERS:].reshape(2, *first.shape), 0, 2)
    explained = 1 - small_unexplained(first, second, vectors, size)
    names = ("density", "confidence", "sharpness", "occluded")
    entries |= dict(zip(names, (density, *scores), strict=True))
    entries |= {"explained": explained, "scene_cut": 1 - explained > CUT}
    return {name: _rounded(value) for name, value in entries.items()}


def _rounded(value: Any) -> Any:
    """Seven digits, which float32 has; None where there is no number."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if isfinite(value) else None


def to_grid(answer: Tensor, grid: int, min_confidence: float = 0.0) -> Tensor:
    """Packed estimate (1, K, H, W) -> flow (2, h, w), the mean of known vectors of squares."""
    flow, known = answer[:, :2], answer[:, 2:3] >= min_confidence
    if grid == 1:
        return flow[0].masked_fill(~known[0], torch.nan)
    how: dict[str, Any] = {"ceil_mode": True, "count_include_pad": False}
    pool: Callable[..., Tensor] = F.avg_pool2d
    share = pool(known.float(), grid, **how)
    return (pool(flow * known, grid, **how) / share)[0]  # unknown, if all of a square is
