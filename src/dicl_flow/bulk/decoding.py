"""The pairs of frames of a manifest's rows; what cannot be read is a pair with its problem."""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..errors import InputError
from ..files import Array, decode_image, to_uint8
from ..video.frames import Frame, Moment, Selection
from ..video.sources import Source, capture, open_source
from .job import Job
from .manifest import Row
from .storage import on_this_machine, read_input


@dataclass(frozen=True)
class Pair:
    """Two frames of a row, or why they cannot be read. Consecutive pairs share their frame."""

    row: int
    """The number of the row in the manifest."""
    number: int
    """The number of the flow in its row."""
    name: str
    """What the row is called."""
    frame1: str = ""
    frame2: str = ""
    time: float | None = None
    images: tuple[Array, Array] | None = None
    """(H, W, 3) uint8 RGB, of one size."""
    problem: str = ""

    @property
    def key(self) -> str:
        """Identifies the flow in the whole output."""
        return f"{self.row:09d}_{self.number:06d}"


class Decoder:
    """Reads the rows of a job in order."""

    def __init__(self, job: Job) -> None:
        self._place, self._decoder = job.place, job.settings.decoder
        self._last: tuple[str, Array] | None = None  # the second frame of the pair before

    def pairs(self, number: int, row: Row) -> Generator[Pair, None, None]:
        """Yield the pairs of a row: at least one, which may be a problem."""
        made = 0
        try:
            for pair in self._clip(number, row) if row.path else self._pair(number, row):
                yield pair
                made += 1
            if not made:
                raise InputError("a flow needs at least two frames")
        except Exception as error:  # whatever is wrong with one item, the others are computed
            self._last = None
            frames = (row.image1, row.image2)
            yield Pair(number, made, row.name, *frames, problem=_sentence(error))

    def _pair(self, number: int, row: Row) -> Iterator[Pair]:
        image1 = self._image(row.image1)
        image2 = self._image(row.image2)
        if image1.shape != image2.shape:
            sizes = [f"{image.shape[1]}x{image.shape[0]}" for image in (image1, image2)]
            raise InputError(f"the two images must have one size, got {' and '.join(sizes)}")
        yield Pair(number, 0, row.name, row.image1, row.image2, images=(image1, image2))

    def _image(self, name: str) -> Array:
        if self._last is None or self._last[0] != name:
            place = self._place(name)
            with _calling_it(name, place):
                self._last = name, to_uint8(decode_image(read_input(place), name))
        return self._last[1]

    def _clip(self, number: int, row: Row) -> Iterator[Pair]:
        selection = Selection(
            Moment.parse("start", row.start or None),
            Moment.parse("end", row.end or None),
            _whole(row.stride or "1"),
            on_error="skip",
        )
        with on_this_machine(self._place(row.path)) as path, _calling_it(row.path, path):
            frames = selection.frames(self._open(path))
            with closing(frames):
                made = 0
                for frame, following in pairwise(frames):
                    if frame.scene == following.scene:
                        problem = frame.problem or following.problem
                        problem = problem.replace(path, row.path)
                        yield _joined(number, made, row, (frame, following), problem)
                        made += 1

    def _open(self, path: str) -> Source:
        if self._decoder == "opencv" and Path(path).is_file():
            return capture(path, live=False)
        return open_source(path)


def _joined(number: int, made: int, row: Row, frames: tuple[Frame, Frame], problem: str) -> Pair:
    frame, following = frames
    about = (row.name, frame.name, following.name, frame.time)
    if frame.image is None or following.image is None:
        return Pair(number, made, *about, problem=problem)
    return Pair(number, made, *about, images=(frame.image, following.image))


@contextmanager
def _calling_it(name: str, path: str) -> Iterator[None]:
    """Let errors say what the manifest says: a copy has another name each time."""
    try:
        yield
    except (InputError, OSError) as error:
        raise InputError(_sentence(error).replace(path, name)) from None


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"stride is a number of frames, got {text!r}")
    return int(text)


def _sentence(error: Exception) -> str:
    """One line; the system's message with its file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
