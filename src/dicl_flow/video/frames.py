"""Which frames are wanted, and what becomes of broken ones."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import cv2

from ..errors import InputError, unknown_name
from ..inputs import Array
from .sources import Shot, Source

ON_ERROR = ("stop", "skip")


@dataclass(frozen=True)
class Frame:
    """A frame of the input."""

    number: int
    """Counted from 0 in the whole input."""
    name: str
    time: float | None
    image: Array | None
    """(H, W, 3) uint8 RGB; None for a frame that is broken."""
    problem: str = ""


@dataclass(frozen=True)
class Moment:
    """A place in a video: a frame's number, or seconds."""

    value: float
    in_seconds: bool

    @classmethod
    def parse(cls, option: str, text: str | None) -> "Moment | None":
        """Read "120" as a frame and "3.5s" as seconds."""
        if text is None:
            return None
        number = text.removesuffix("s")
        try:
            value = float(number) if text.endswith("s") else int(number)
        except ValueError:
            value = -1
        if not 0 <= value < float("inf"):
            raise InputError(f"{option} is a frame's number (120) or seconds (3.5s), got {text!r}")
        return cls(value, text.endswith("s"))

    def is_reached(self, number: int, shot: Shot) -> bool:
        """Whether a shot lies here or later."""
        if not self.in_seconds:
            return number >= self.value
        if shot.time is None:
            raise InputError("images have no time; give `start` and `end` as numbers of frames")
        return shot.time >= self.value


@dataclass(frozen=True)
class Selection:
    """Every `stride`-th frame from `start` up to, not including, `end`, resized by `scale`."""

    start: Moment | None = None
    end: Moment | None = None
    stride: int = 1
    scale: float = 1.0
    on_error: str = "stop"

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.stride < 1:
            raise InputError(f"`stride` is 1 or more, got {self.stride}")
        if not 0 < self.scale <= 8:
            raise InputError(f"`scale` lies between 0 and 8, got {self.scale:g}")
        if self.on_error not in ON_ERROR:
            raise unknown_name("`on_error`", self.on_error, ON_ERROR)

    def frames(self, source: Source, skip: int = 0) -> "Frames":
        """Go through the wanted frames but the first `skip`; others are not even converted."""
        first: int | None = None
        size: tuple[int, ...] | None = None
        for number, shot in enumerate(source.shots()):
            if self.start is not None and not self.start.is_reached(number, shot):
                continue
            if self.end is not None and self.end.is_reached(number, shot):
                return
            first = number if first is None else first
            position, between = divmod(number - first, self.stride)
            if between or (position < skip and size is not None):
                continue
            frame = self._frame(number, shot, size)
            if frame.image is not None:
                size = frame.image.shape  # of the first frame, whether it is wanted again or not
            if position >= skip:
                yield frame

    def chosen(self, files: Sequence[Path]) -> Sequence[Path]:
        """Return the files of the wanted frames; images have no time to choose them by."""
        start, end = (None if m is None else int(m.value) for m in (self.start, self.end))
        return files[start : end : self.stride]

    def expected(self, source: Source) -> int | None:
        """How many frames that will be, if it can be told."""
        start, end = (self._number(moment, source.rate) for moment in (self.start, self.end))
        ends = [value for value in (end, source.count) if value is not None]
        return -(-max(min(ends) - (start or 0), 0) // self.stride) if ends else None

    @staticmethod
    def _number(moment: Moment | None, rate: float | None) -> int | None:
        if moment is None or (moment.in_seconds and not rate):
            return None
        return round(moment.value * rate) if moment.in_seconds and rate else int(moment.value)

    def _frame(self, number: int, shot: Shot, size: tuple[int, ...] | None) -> Frame:
        try:
            image = self._resized(shot.read())
            if size is not None and image.shape != size:
                raise InputError(
                    f"is {image.shape[1]}x{image.shape[0]}, but the frames before were "
                    f"{size[1]}x{size[0]}; all must have one size"
                )
        except (InputError, OSError) as error:
            if self.on_error == "stop":
                raise InputError(
                    f"frame {number} ({shot.name}): {error}; `on_error='skip'` goes on without it"
                ) from None
            return Frame(number, shot.name, shot.time, None, " ".join(str(error).split()))
        return Frame(number, shot.name, shot.time, image)

    def _resized(self, image: Array) -> Array:
        if self.scale == 1:
            return image
        height, width = (max(1, round(side * self.scale)) for side in image.shape[:2])
        method = cv2.INTER_AREA if self.scale < 1 else cv2.INTER_CUBIC
        return cv2.resize(image, (width, height), interpolation=method)


Frames: TypeAlias = Generator[Frame, None, None]
