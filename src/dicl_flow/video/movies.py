"""Videos that are written while flows arrive, in pieces that survive a kill."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..estimation.compute import usable_cores
from ..estimation.warping import interpolate_tensors, to_picture, to_tensor
from ..files import Array, Plate, encode_plate, replacing, write_files
from ..pictures.visualize import CALMEST, MOST
from .coding import CODINGS, Coding, check_rate
from .encoding import Segment, SideBySide, join
from .flows import FrameFlow
from .frames import Frame
from .sound import Sound
from .writers import FolderWriter, Prepared, Writer, check_one_size, draw


class Movie(Writer):
    """A video of numbered pictures; where a number is missing, the one before is shown longer.

    Each piece is a segment. As many are encoded side by side as there are cores, so they are short.
    """

    piece = 16

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: float,
        coding: Coding | None = None,
        sound: Sound | None = None,
    ) -> None:
        super().__init__()
        check_rate(output, float(rate))
        self.output, self._parts, self._sound = output, parts, sound
        self.rate = exact = Fraction(rate).limit_denominator(1001)  # 29.97 means 30000/1001
        coding = coding or CODINGS[output.suffix.lower()]
        self._segments = SideBySide(
            output,
            lambda path: Segment(path, exact, coding),
            coding.at_once or usable_cores(),
            keep_depth=coding.bits > 8,
        )
        self._first: int | None = None  # picture of the open segment

    def resume(self, done: int) -> None:
        """Remove segments that were not closed."""
        for path in self._parts.glob(f"*{self.output.suffix}"):
            if path.stem.startswith("open_") or int(path.stem) >= self._first_picture(done):
                path.unlink()

    def add(self, picture: Array, number: int) -> None:
        """Encode a picture, in another thread."""
        height, width = picture.shape[:2]
        first = [self.memory.setdefault(*side) for side in (("height", height), ("width", width))]
        check_one_size("pictures of a video", (height, width), first)
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
        if not segments:
            raise FileNotFoundError(f"cannot write {self.output}: {self._parts} is empty or gone")
        with replacing(self.output) as temporary:
            join(segments, temporary, self.output.suffix, self.rate, self._sound)
        return self.output

    def _first_picture(self, flow: int) -> int:
        """The number of the first picture of a flow."""
        return flow


_FALL, _RISE = 0.95, 1.25  # how fast the colour scale changes, from one frame to the next


def smooth_scale(flow: Tensor, before: Tensor | None) -> Tensor:
    """The motion with full colour and arrow in px, (2,), close to that of the frame before."""
    lengths = torch.hypot(*flow)
    most = lengths[::4, ::4].nanquantile(MOST)
    longest = torch.stack([lengths.nan_to_num(0).max(), most.nan_to_num(0)]).clamp(min=CALMEST)
    return longest if before is None else longest.clamp(_FALL * before, _RISE * before)


class PictureVideo(Movie):
    """A video of pictures of the flows, one for each.

    A motion of `maximum` px has full colour; by default the longest vector, smoothed so that
    colours do not flicker; of arrows, that of most vectors. A broken frame has no picture. With
    `key`, pictures are explained.
    """

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: float,
        panels: Sequence[str],
        maximum: float | None = None,
        coding: Coding | None = None,
        sound: Sound | None = None,
        *,
        key: bool = False,
    ) -> None:
        super().__init__(output, parts, rate, coding, sound)
        self.panels, self.maximum, self.key = panels, maximum, key
        self._scale: Tensor | None = None
        self._scales: deque[Tensor] = deque()  # of pictures that are not written yet
        self._shown: Tensor | None = None  # that of the last picture written

    def prepare(self, flow: FrameFlow) -> Prepared:
        """Draw a flow."""
        maximum = self._maximum(flow.flow)
        self._scales.append(maximum)
        return draw(self.panels, flow, maximum, key=self.key)

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Encode a picture."""
        if prepared is not None:
            self.add(prepared, self.done)
            self._shown = self._scales.popleft()

    def commit(self) -> "Future[None] | None":
        """End the segment."""
        if self._shown is not None:  # not the scale of the last one drawn, which is ahead
            self.memory["scale"], self.memory["arrow_scale"] = self._shown.tolist()
        return super().commit()

    def _maximum(self, flow: Tensor) -> Tensor:
        """The motion with full colour and arrow in px, (2,); the device is not waited for."""
        if self.maximum is not None:
            return torch.tensor([self.maximum] * 2, device=flow.device)
        if self._scale is None:
            names = ("scale", "arrow_scale")
            before = [self.memory[name] for name in names if name in self.memory]
            self._scale = flow.new_tensor(before) if len(before) == 2 else None
        self._scale = smooth_scale(flow, self._scale)
        return self._scale


def _values(frame: Frame) -> Array | None:
    return frame.image if frame.plate is None else frame.plate.values


class _SlowPictures(Writer):
    """`factor` pictures for each frame of a clip except the last; needs the backward flow."""

    factor: int

    def add(self, picture: Array, number: int) -> None:
        """Write a picture."""
        raise NotImplementedError

    def prepare(self, flow: FrameFlow) -> Array:
        """(factor - 1, H, W, C): the frames between the two; at a cut, the first is repeated."""
        first, second = _values(flow.frame), _values(flow.following)
        assert first is not None
        assert second is not None
        if first.shape != second.shape:  # the size is the same
            raise InputError(f"frame {flow.following.number}: all frames must have alpha, or none")
        if flow.is_cut:
            return np.stack([first] * (self.factor - 1))
        assert flow.estimate is not None
        forward, backward = flow.estimate[:, :2], flow.estimate[:, 3:5]
        image1, image2 = (to_tensor(image).to(forward.device) for image in (first, second))
        between = (
            interpolate_tensors(image1, image2, forward, backward, time=step / self.factor)
            for step in range(1, self.factor)
        )
        return np.stack([to_picture(picture, first.dtype) for picture in between])

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Add the new frames of a pair and the second; before the first pair, frame 0."""
        first, second = (_values(frame) for frame in (flow.frame, flow.following))
        if self.done == 0 and first is not None:
            self.add(first, 0)
        for step, picture in enumerate([] if prepared is None else prepared, 1):
            self.add(picture, self.done * self.factor + step)
        if second is not None:
            self.add(second, (self.done + 1) * self.factor)
        cuts = self.memory.get("cuts", 0)
        self.memory["cuts"] = cuts + (not flow.problem and flow.is_cut)

    def summary(self) -> dict[str, float]:
        """How often the frame before a cut was held."""
        return {"cuts_held": int(self.memory["cuts"])}


class SlowMotion(Movie, _SlowPictures):
    """A video in slow motion."""

    piece = 8

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: float,
        factor: int,
        coding: Coding | None = None,
        sound: Sound | None = None,
    ) -> None:
        super().__init__(output, parts, rate, coding, sound)
        self.factor = factor

    def _first_picture(self, flow: int) -> int:
        return flow * self.factor + 1 if flow else 0


class SlowMotionFrames(FolderWriter, _SlowPictures):
    """The same as a folder of images, frame_000000.png or .exr and so on; depth is kept."""

    def __init__(self, folder: Path, factor: int, suffix: str = ".png") -> None:
        super().__init__(folder, f".frame_*{suffix}.*")
        self.factor, self._suffix = factor, suffix
        self._plate: Plate | None = None  # a frame of the clip, which tells what values mean

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write the frames of a pair."""
        self.make_folder()
        self._plate = flow.frame.plate or flow.following.plate
        super().write(flow, prepared)

    def add(self, picture: Array, number: int) -> None:
        """Write a picture."""
        path = self.folder / f"frame_{number:06d}{self._suffix}"
        plate = self._plate.with_values(picture) if self._plate else Plate(picture)
        write_files({path: encode_plate(path, plate)})
