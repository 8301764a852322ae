"""Select frames of a source, and handle broken ones."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias, TypeVar

import cv2

from ..errors import InputError, unknown_name
from ..files import Array
from .sources import Shot, Source

ON_ERROR = ("stop", "skip")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Frame:
    """A frame of the input."""

    number: int
    """Counted from 0 in the whole input."""
    name: str
    time: float | None
    image: Array | None
    """(H, W, 3) RGB; None if the frame is broken."""
    problem: str = ""
    scene: str = ""
    """Flow is estimated only within a scene."""


@dataclass(frozen=True)
class Moment:
    """A position in a video: a frame number, or seconds."""

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
            raise InputError(
                f"{option} must be a frame number (120) or seconds (3.5s), got {text!r}"
            )
        return cls(value, text.endswith("s"))

    def is_before(self, other: "Moment") -> bool:
        """Whether this is before the other or equal to it; false if the units differ."""
        return self.in_seconds == other.in_seconds and self.value <= other.value

    def __str__(self) -> str:
        return f"{self.value:g} s" if self.in_seconds else f"frame {self.value:.0f}"

    def is_reached(self, number: int, shot: Shot) -> bool:
        """Whether a shot is at this position or later."""
        if not self.in_seconds:
            return number >= self.value
        if shot.time is None:
            raise InputError("images have no time; give `start` and `end` as frame numbers")
        return shot.time >= self.value


@dataclass(frozen=True)
class Selection:
    """Every `stride`-th frame from `start` to before `end`, resized by `scale`."""

    start: Moment | None = None
    end: Moment | None = None
    stride: int = 1
    scale: float = 1.0
    on_error: str = "stop"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.stride < 1:
            raise InputError(f"`stride` must be at least 1, got {self.stride}")
        if not 0 < self.scale <= 8:
            raise InputError(f"`scale` must be above 0 and at most 8, got {self.scale:g}")
        if self.on_error not in ON_ERROR:
            raise unknown_name("`on_error`", self.on_error, ON_ERROR)
        if self.start is not None and self.end is not None and self.end.is_before(self.start):
            raise InputError(f"the end ({self.end}) must be after the start ({self.start})")

    def frames(self, source: Source, skip: int = 0) -> "Frames":
        """Yield the selected frames except the first `skip`; the others are not converted."""
        first: int | None = None
        kind: Kind | None = None
        scene, number = "", -1
        for number, shot in enumerate(source.shots()):
            if self.start is not None and not self.start.is_reached(number, shot):
                continue
            if self.end is not None and self.end.is_reached(number, shot):
                return
            first = number if first is None else first
            position, between = divmod(number - first, self.stride)
            if between or (position < skip and (kind is not None or shot.scene)):
                continue
            scene, kind = shot.scene, kind if shot.scene == scene else None
            frame = self._frame(number, shot, kind)
            if frame.image is not None:
                kind = _kind(frame.image)  # of the first frame, even if it is skipped
            if position >= skip:
                yield frame
        if first is None and self.start is not None:
            raise InputError(
                f"the start ({self.start}) is past the end: the input has "
                f"{_length(number + 1, source.rate)}"
            )

    @property
    def in_seconds(self) -> bool:
        """Whether start or end is a time, which images do not have."""
        return any(moment is not None and moment.in_seconds for moment in (self.start, self.end))

    def chosen(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of the selected frames; of images, which are selected by number."""
        start, end = (None if m is None else int(m.value) for m in (self.start, self.end))
        return items[start : end : self.stride]

    def expected_flows(self, source: Source) -> int | None:
        """How many flows there will be, if known."""
        if source.scenes:
            return len(self._pairs(source))
        frames = self.expected(source)
        return None if frames is None else max(frames - 1, 0)

    def first_frame(self, source: Source, flow: int) -> int:
        """How many selected frames come before the first frame of flow number `flow`."""
        if not source.scenes:
            return flow
        pairs = self._pairs(source)
        return pairs[flow] if flow < len(pairs) else len(self.chosen(source.scenes))

    def used_frames(self, source: Source, flows: int) -> int:
        """How many selected frames the first `flows` flows need."""
        return self.first_frame(source, flows) + (not source.scenes)

    def _pairs(self, source: Source) -> list[int]:
        """The positions of selected frames that are followed by another one of their scene."""
        neighbours = pairwise(self.chosen(source.scenes))
        return [place for place, (one, two) in enumerate(neighbours) if one == two]

    def expected(self, source: Source) -> int | None:
        """How many frames there will be, if known."""
        start, end = (self._number(moment, source.rate) for moment in (self.start, self.end))
        ends = [value for value in (end, source.count) if value is not None]
        return -(-max(min(ends) - (start or 0), 0) // self.stride) if ends else None

    @staticmethod
    def _number(moment: Moment | None, rate: float | None) -> int | None:
        if moment is None or (moment.in_seconds and not rate):
            return None
        return round(moment.value * rate) if moment.in_seconds and rate else int(moment.value)

    def _frame(self, number: int, shot: Shot, kind: "Kind | None") -> Frame:
        try:
            image = self._resized(shot.read())
            if kind is not None and _kind(image) != kind:
                raise InputError(_difference(_kind(image), kind))
        except (InputError, OSError) as error:
            if self.on_error == "stop":
                raise InputError(
                    f"frame {number} ({shot.name}): {error}; `on_error='skip'` continues without it"
                ) from None
            problem = " ".join(str(error).split())
            return Frame(number, shot.name, shot.time, None, problem, shot.scene)
        return Frame(number, shot.name, shot.time, image, scene=shot.scene)

    def _resized(self, image: Array) -> Array:
        if self.scale == 1:
            return image
        height, width = (max(1, round(side * self.scale)) for side in image.shape[:2])
        method = cv2.INTER_AREA if self.scale < 1 else cv2.INTER_CUBIC
        return cv2.resize(image, (width, height), interpolation=method)


Frames: TypeAlias = Generator[Frame, None, None]


class Kind(NamedTuple):
    """The properties that all frames share."""

    width: int
    height: int
    bits: int


def _kind(image: Array) -> Kind:
    return Kind(image.shape[1], image.shape[0], 8 * image.dtype.itemsize)


def _difference(kind: Kind, before: Kind) -> str:
    sizes = f"{kind.width}x{kind.height}", f"{before.width}x{before.height}"
    if sizes[0] != sizes[1]:
        return f"is {sizes[0]}, but the frames before were {sizes[1]}; all must have one size"
    return f"has {kind.bits} bits, but the frames before had {before.bits}; all must have the same"


def _length(frames: int, rate: float | None) -> str:
    """The length of an input, in words."""
    seconds = f" ({frames / rate:.2f} s)" if rate else ""
    return f"{frames} frame{'s' * (frames != 1)}{seconds}"
