"""Slow motion: the frames of a clip, with new frames between them."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..estimation.interpolation import interpolate_tensors, to_picture, to_tensor
from ..files import Array, encode_image, write_files
from .encoding import Coding, Encoder, Segment
from .flows import FrameFlow
from .movies import Movie
from .writers import Writer


def frames_between(flow: FrameFlow, factor: int) -> Iterator[Array]:
    """Interpolate `factor` - 1 frames between two; at a cut, the first is repeated.

    Requires the backward flow.
    """
    first, second = flow.images
    if flow.is_cut:
        yield from [first] * (factor - 1)
        return
    assert flow.answer is not None
    forward, backward = flow.answer[:, :2], flow.answer[:, 3:5]
    image1, image2 = (to_tensor(image).to(forward.device) for image in (first, second))
    for step in range(1, factor):
        between = interpolate_tensors(image1, image2, forward, backward, time=step / factor)
        yield to_picture(between, first.dtype)


def numbered_frames(
    flow: FrameFlow, new: Array | None, number: int, factor: int
) -> Iterator[tuple[int, Array]]:
    """Number the frames of flow `number`: the new ones, then the second of the pair.

    The first frame of the clip has the number 0. Next to a broken frame there are no new ones.
    """
    if number == 0 and flow.frame.image is not None:
        yield 0, flow.frame.image
    if new is not None:
        yield from enumerate(new, number * factor + 1)
    if flow.following.image is not None:
        yield (number + 1) * factor, flow.following.image


class SlowMotion(Movie):
    """A video with `factor` frames for each frame of the clip except the last."""

    piece = 8

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: Fraction,
        factor: int,
        coding: Coding | None = None,
        encoder: Callable[[Path, Fraction, Coding], Encoder] = Segment,
    ) -> None:
        super().__init__(output, parts, rate, coding, encoder)
        self.factor = factor

    def prepare(self, flow: FrameFlow) -> Array:
        """(factor - 1, H, W, 3): the frames between the two."""
        return np.stack(list(frames_between(flow, self.factor)))

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Encode the frames of a pair."""
        for number, picture in numbered_frames(flow, prepared, self._next, self.factor):
            self.add(picture, number)
        _count_cut(self, flow)
        self._next += 1

    def _first_picture(self, flow: int) -> int:
        return flow * self.factor + 1 if flow else 0


class SlowMotionFrames(Writer):
    """The same as a folder of images, frame_000000.png and so on; 16 bits are kept."""

    def __init__(self, folder: Path, factor: int) -> None:
        super().__init__()
        self.folder, self.factor, self._next = folder, factor, 0
        self._has_folder = False

    def resume(self, done: int) -> None:
        """Remove partly written files of a killed run."""
        self._next, self._has_folder = done, done > 0
        for path in self.folder.glob(".frame_*.png.*"):
            path.unlink(missing_ok=True)

    def prepare(self, flow: FrameFlow) -> Array:
        """(factor - 1, H, W, 3): the frames between the two."""
        return np.stack(list(frames_between(flow, self.factor)))

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write the frames of a pair."""
        if not self._has_folder:  # only once: one that is lost takes frames with it
            self.folder.mkdir(parents=True, exist_ok=True)
            self._has_folder = True
        for number, picture in numbered_frames(flow, prepared, self._next, self.factor):
            path = self.folder / f"frame_{number:06d}.png"
            write_files({path: encode_image(path, picture)})
        _count_cut(self, flow)
        self._next += 1

    def finish(self) -> Path:
        """Return the folder; everything has been written."""
        return self.folder


def _count_cut(writer: Writer, flow: FrameFlow) -> None:
    """Count the cuts, for the report."""
    cuts = writer.memory.get("cuts", 0)
    writer.memory["cuts"] = cuts + (not flow.problem and flow.is_cut)
