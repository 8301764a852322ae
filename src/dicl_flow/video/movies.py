"""Videos of pictures of the flows, and in slow motion: segments are encoded side by side."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore, Condition
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, unknown_name
from ..estimation.compute import usable_cores
from ..estimation.interpolation import interpolate_tensors, to_picture, to_tensor
from ..estimation.warping import warp
from ..files import Array, encode_image, naming, replacing, to_uint8, write_files
from ..pictures import visualize
from ..pictures.visualize import CALMEST, OUT_OF_RANGE, color_wheel, confidence_to_grey
from .encoding import CODINGS, Coding, Segment, even, join
from .flows import FrameFlow, arriving
from .writers import FolderWriter, Prepared, Writer, check_one_size

GIF_RATE = 50  # frames per second: viewers show a faster GIF at 10
_WAITING = 1 << 30  # bytes of pictures that wait for their encoders; one picture always may


_Pictures: TypeAlias = "SimpleQueue[tuple[Array, int] | None]"
"""The numbered pictures of a segment; None: the end."""


class SideBySide:
    """Encodes at most `at_once` segments at a time, while pictures arrive for the last of them.

    A file gets its name when it is complete. If an encoder fails, the next picture raises its
    error, which names the `output`.
    """

    def __init__(self, output: Path, encoder: Callable[[Path], Segment], at_once: int) -> None:
        self._output, self._encoder = output, encoder
        self._slots, self._pool = BoundedSemaphore(at_once), ThreadPoolExecutor(at_once, "encode")
        self._tasks: deque[tuple[_Pictures, Future[None]]] = deque()
        self._changed, self._waiting = Condition(), 0
        self._error: BaseException | None = None
        self._stopped = False

    def begin(self, temporary: Path, path: Path) -> None:
        """Begin a segment; wait if there are too many."""
        self._slots.acquire()
        while self._tasks and self._tasks[0][1].done():
            self._tasks.popleft()
        pictures: _Pictures = SimpleQueue()
        self._tasks.append((pictures, self._pool.submit(self._encode, pictures, temporary, path)))

    def add(self, picture: Array, number: int) -> None:
        """Add a picture to the segment; wait if those that wait take too much memory."""
        with self._changed:
            most = max(0, _WAITING - picture.nbytes)
            self._changed.wait_for(lambda: self._error or self._waiting <= most)
            if self._error is not None:
                raise self._error
            self._waiting += picture.nbytes
        self._tasks[-1][0].put((picture, number))

    def end(self) -> "Future[None]":
        """End the segment; the result is there when its file is complete."""
        self._tasks[-1][0].put(None)
        return self._tasks[-1][1]

    def finish(self) -> None:
        """Wait for all segments."""
        for _, ended in self._tasks:
            ended.result()

    def stop(self) -> None:
        """Abandon the segments that are not complete; nothing is written after that."""
        self._stopped = True
        for pictures, _ in self._tasks:
            pictures.put(None)
        self._pool.shutdown()
        self._tasks.clear()

    def _encode(self, pictures: _Pictures, temporary: Path, path: Path) -> None:
        try:
            with naming(self._output):
                encode = self._encoder(temporary)
                for picture, number in iter(pictures.get, None):
                    if self._stopped:
                        return
                    encode(even(to_uint8(picture)), number)
                    self._change(-picture.nbytes)
                if self._stopped:
                    return
                encode.close()
                temporary.replace(path)
        except BaseException as error:
            self._change(0, error)
            raise
        finally:
            self._slots.release()

    def _change(self, num_bytes: int, error: BaseException | None = None) -> None:
        with self._changed:
            self._waiting += num_bytes
            self._error = self._error or error
            self._changed.notify()


def check_rate(output: Path, rate: float) -> None:
    """Refuse more frames per second than a format can show."""
    if output.suffix.lower() == ".gif" and rate > GIF_RATE:
        raise InputError(
            f"a GIF shows at most {GIF_RATE} frames per second, {output} would need {rate:g}; "
            "give a lower rate, or write a video"
        )


class Movie(Writer):
    """A video of numbered pictures; where a number is missing, the one before is shown longer.

    Each piece is a segment. As many are encoded side by side as there are cores, so they are short.
    """

    piece = 16

    def __init__(
        self, output: Path, parts: Path, rate: float, coding: Coding | None = None
    ) -> None:
        super().__init__()
        check_rate(output, float(rate))
        self.output, self._parts = output, parts
        self.rate = exact = Fraction(rate).limit_denominator(1001)  # 29.97 means 30000/1001
        coding = coding or CODINGS[output.suffix.lower()]
        self._segments = SideBySide(
            output, lambda path: Segment(path, exact, coding), coding.at_once or usable_cores()
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
        with replacing(self.output) as temporary:
            join(segments, temporary, self.output.suffix, self.rate)
        return self.output

    def _first_picture(self, flow: int) -> int:
        """The number of the first picture of a flow."""
        return flow


def flow_colors(flow: Tensor, maximum: float | Tensor) -> Tensor:
    """(2, H, W) -> (H, W, 3) uint8: `visualize.flow_to_rgb`, up to 1, in float32 on the device."""
    known = flow.abs().amax(0) < 1e9  # false for NaN as well
    x, y = torch.where(known, flow, 0).unbind(0)
    saturation = torch.hypot(x, y) / maximum
    corners, slopes = _wheel(flow.device)  # (3, 55) each
    position = (torch.atan2(-y, -x) / torch.pi + 1) * ((corners.shape[1] - 1) / 2)
    below = position.long().flatten().expand(3, -1)
    hue = corners.gather(1, below) + slopes.gather(1, below) * (position % 1).flatten()
    hue = hue.unflatten(1, x.shape)
    color = torch.where(saturation <= 1, 1 - saturation * (1 - hue), hue * OUT_OF_RANGE)
    return torch.where(known, 255 * color, 0).to(torch.uint8).permute(1, 2, 0).contiguous()


@lru_cache(maxsize=4)
@torch.inference_mode(mode=False)
def _wheel(device: torch.device) -> tuple[Tensor, Tensor]:
    """Colours, and the differences to the next colours, by channel."""
    wheel = torch.from_numpy(color_wheel().T.copy())
    slopes = wheel.roll(-1, 1) - wheel
    return wheel.float().to(device), slopes.float().to(device)


def _grey(values: Array) -> Array:
    return np.dstack([confidence_to_grey(values)] * 3)


def _difference(flow: FrameFlow, maximum: Tensor) -> Tensor:
    """Difference of frame 1 and frame 2 warped by the flow; black where the flow leads outside."""
    first, second = (
        torch.from_numpy(image).to(flow.flow.device).permute(2, 0, 1)[None].float()
        for image in flow.images
    )
    inside = torch.ones_like(second[:, :1])
    warped, inside = warp(torch.cat([second, inside], 1), flow.flow[None]).split([3, 1], 1)
    difference = (warped - first).abs() * (inside > 0.999)
    return difference[0].byte().permute(1, 2, 0).contiguous()


PANELS: dict[str, Callable[[FrameFlow, Tensor], Array | Tensor]] = {
    "frame": lambda flow, maximum: flow.images[0],
    "wheel": lambda flow, maximum: flow_colors(flow.flow, maximum),
    "overlay": lambda flow, maximum: visualize.tint(
        flow.images[0], flow_colors(flow.flow, maximum).cpu().numpy()
    ),
    "arrows": lambda flow, maximum: visualize.draw_arrows(
        flow.images[0], flow.result.flow, maximum=float(maximum)
    ),
    "difference": _difference,
    "confidence": lambda flow, maximum: _grey(flow.result.confidence),
    # white where a pixel of frame 1 is hidden in frame 2
    "occlusion": lambda flow, maximum: _grey(np.asarray(flow.result.occlusion)),
}


def parse_panels(text: str) -> tuple[str, ...]:
    """Read "frame,wheel": names of `PANELS`, in the order in which they are shown."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in PANELS:
            raise unknown_name("`show`", name, PANELS)
    if len(set(names)) < len(names):
        raise InputError(f"`show` names a picture twice: {text}")
    return names


def draw(panels: Sequence[str], flow: FrameFlow, maximum: Tensor) -> Callable[[], Array]:
    """Draw all panels; return a function that waits for them and puts them on one picture."""
    drawn = [PANELS[name](flow, maximum) for name in panels]
    begun = [arriving(panel) if isinstance(panel, Tensor) else panel for panel in drawn]

    def sheet() -> Array:
        """(H, W, 3): two side by side, four as 2x2."""
        pictures = [picture() if callable(picture) else picture for picture in begun]
        if len(pictures) == 1:
            return pictures[0].copy()  # what arrived from a device lies in memory that is scarce
        columns = isqrt(len(pictures) - 1) + 1
        pictures += [np.zeros_like(pictures[0])] * (-len(pictures) % columns)
        rows = range(0, len(pictures), columns)
        return np.concatenate([np.concatenate(pictures[row : row + columns], 1) for row in rows])

    return sheet


_FALL, _RISE = 0.95, 1.25  # how fast the colour scale changes, from one frame to the next


class PictureVideo(Movie):
    """A video of pictures of the flows, one for each.

    A motion of `maximum` px has full colour; by default the longest vector, smoothed so that
    colours do not flicker. A broken frame has no picture.
    """

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: float,
        panels: Sequence[str],
        maximum: float | None = None,
        coding: Coding | None = None,
    ) -> None:
        super().__init__(output, parts, rate, coding)
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
            self.add(prepared, self.done)
            self._shown = self._scales.popleft()

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


class _SlowPictures(Writer):
    """`factor` pictures for each frame of a clip except the last; needs the backward flow."""

    factor: int

    def add(self, picture: Array, number: int) -> None:
        """Write a picture."""
        raise NotImplementedError

    def prepare(self, flow: FrameFlow) -> Array:
        """(factor - 1, H, W, 3): the frames between the two; at a cut, the first is repeated."""
        first, second = flow.images
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
        if self.done == 0 and flow.frame.image is not None:
            self.add(flow.frame.image, 0)
        for step, picture in enumerate([] if prepared is None else prepared, 1):
            self.add(picture, self.done * self.factor + step)
        if flow.following.image is not None:
            self.add(flow.following.image, (self.done + 1) * self.factor)
        cuts = self.memory.get("cuts", 0)
        self.memory["cuts"] = cuts + (not flow.problem and flow.is_cut)


class SlowMotion(Movie, _SlowPictures):
    """A video in slow motion."""

    piece = 8

    def __init__(
        self, output: Path, parts: Path, rate: float, factor: int, coding: Coding | None = None
    ) -> None:
        super().__init__(output, parts, rate, coding)
        self.factor = factor

    def _first_picture(self, flow: int) -> int:
        return flow * self.factor + 1 if flow else 0


class SlowMotionFrames(FolderWriter, _SlowPictures):
    """The same as a folder of images, frame_000000.png and so on; 16 bits are kept."""

    def __init__(self, folder: Path, factor: int) -> None:
        super().__init__(folder, ".frame_*.png.*")
        self.factor = factor

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write the frames of a pair."""
        self.make_folder()
        super().write(flow, prepared)

    def add(self, picture: Array, number: int) -> None:
        """Write a picture."""
        path = self.folder / f"frame_{number:06d}.png"
        write_files({path: encode_image(path, picture)})
