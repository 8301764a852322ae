"""The pairs of frames of a manifest's rows; what cannot be read is a pair with its problem."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import eq
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import Array, decode_image, to_uint8
from ..video.frames import Frame, Moment, Selection
from ..video.sources import Shot, Source, capture, images, open_source, video_from
from .job import Job
from .manifest import Row
from .storage import on_this_machine, read_input

_THREADS = ThreadPoolExecutor(min(8, os.cpu_count() or 1))  # started when they are needed
_AHEAD = 8  # images that are read before they are needed


@dataclass(frozen=True)
class Pair:
    """Two frames of a row, or why they cannot be read. Consecutive pairs share their frame."""

    row: int  # its number in the manifest
    number: int  # of the flow in its row
    name: str  # of the row
    frame1: str = ""
    frame2: str = ""
    time: float | None = None
    images: tuple[Array, Array] | None = None  # (H, W, 3) uint8 RGB, of one size
    problem: str = ""

    @property
    def key(self) -> str:
        """Identifies the flow in the whole output."""
        return f"{self.row:09d}_{self.number:06d}"

    @property
    def about(self) -> dict[str, str]:
        """Names its row and its frames."""
        return {"clip": self.name, "frame1": self.frame1, "frame2": self.frame2}


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
