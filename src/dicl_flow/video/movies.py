"""Videos that are written while flows arrive, in closed segments that survive a kill."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..estimation.compute import usable_cores
from ..files import Array, replacing
from ..pictures.visualize import CALMEST
from .encoding import CODINGS, Coding, Encoder, Segment, check_rate, join
from .flows import FrameFlow
from .panels import draw
from .side_by_side import SideBySide
from .writers import Prepared, Writer

_FALL, _RISE = 0.95, 1.25  # how fast the colour scale changes, from one frame to the next


class Movie(Writer):
    """A video of numbered pictures; where a number is missing, the one before is shown longer.

    Each piece is a segment. As many are encoded side by side as there are cores, so they are short.
    """

    piece = 16

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: Fraction,
        coding: Coding | None = None,
        encoder: Callable[[Path, Fraction, Coding], Encoder] = Segment,
    ) -> None:
        super().__init__()
        check_rate(output, float(rate))
        self.output, self.rate = output, rate
        self._parts = parts
        coding = coding or CODINGS[output.suffix.lower()]
        self._segments = SideBySide(
            output, lambda path: encoder(path, rate, coding), coding.at_once or usable_cores()
        )
        self._first: int | None = None  # picture of the open segment
        self._next = 0  # flow

    def resume(self, done: int) -> None:
        """Remove segments that were not closed."""
        self._next = done
        for path in self._parts.glob(f"*{self.output.suffix}"):
            if path.stem.startswith("open_") or int(path.stem) >= self._first_picture(done):
                path.unlink()

    def add(self, picture: Array, number: int) -> None:
        """Encode a picture, in another thread."""
        self._check_size(picture)
        if self._first is None:
            self._first = number
            name = f"{number:09d}{self.output.suffix}"
            self._segments.begin(self._parts / f"open_{name}", self._parts / name)
        self._segments.add(picture, number - self._first)

    def commit(self) -> "Future[None] | None":
        """End the segment."""
        if self._first is None:
            return None
        self._first = None
        return self._segments.end()

    def stop(self) -> None:
        """Abandon segments that are not complete."""
        self._segments.stop()

    def finish(self) -> Path:
        """Join the segments."""
        self._segments.finish()
        segments = sorted(self._parts.glob(f"*{self.output.suffix}"))
        with replacing(self.output) as temporary:
            join(segments, temporary, self.output.suffix, self.rate)
        return self.output

    def _first_picture(self, flow: int) -> int:
        """The number of the first picture of a flow."""
        return flow

    def _check_size(self, picture: Array) -> None:
        height, width = picture.shape[:2]
        self.memory.setdefault("height", height)
        self.memory.setdefault("width", width)
        expected = self.memory["width"], self.memory["height"]
        if (width, height) != expected:
            raise InputError(
                f"all pictures of a video have one size; this is {width}x{height} after "
                f"{expected[0]:.0f}x{expected[1]:.0f}; write a folder"
            )


class PictureVideo(Movie):
    """A video of pictures of the flows, one for each.

    A motion of `maximum` px has full colour; by default the longest vector, smoothed so that
    colours do not flicker. A broken frame has no picture.
    """

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: Fraction,
        panels: Sequence[str],
        maximum: float | None = None,
        coding: Coding | None = None,
        encoder: Callable[[Path, Fraction, Coding], Encoder] = Segment,
    ) -> None:
        super().__init__(output, parts, rate, coding, encoder)
        self.panels, self.maximum = panels, maximum
        self._scale: Tensor | None = None
        self._scales: deque[Tensor] = deque()  # of pictures that are not written yet
        self._shown: Tensor | None = None  # that of the last picture written

    def prepare(self, flow: FrameFlow) -> Prepared:
        """Draw a flow."""
        maximum = self._maximum(flow.flow)
        self._scales.append(maximum)
        return draw(self.panels, flow, maximum)

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Encode a picture."""
        if prepared is not None:
            self.add(prepared, self._next)
            self._shown = self._scales.popleft()
        self._next += 1

    def commit(self) -> "Future[None] | None":
        """End the segment."""
        if self._shown is not None:  # not the scale of the last one drawn, which is ahead
            self.memory["scale"] = float(self._shown)
        return super().commit()

    def _maximum(self, flow: Tensor) -> Tensor:
        """The motion with full colour in px, as a tensor, so that the device is not waited for."""
        if self.maximum is not None:
            return torch.tensor(self.maximum, device=flow.device)
        longest = torch.hypot(*flow.nan_to_num(0)).max().clamp(min=CALMEST)
        if self._scale is None:
            before = self.memory.get("scale")
            self._scale = longest if before is None else longest.new_tensor(before)
        self._scale = longest.clamp(_FALL * self._scale, _RISE * self._scale)
        return self._scale
