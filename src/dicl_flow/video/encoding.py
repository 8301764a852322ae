"""Pictures as a video: in closed segments that outlive a kill, joined without encoding again."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..data.video_frames import pyav
from ..files import replacing
from ..inputs import Array
from ..visualize import CALMEST
from .flows import FrameFlow
from .pictures import draw
from .writers import Writer

_H264 = ("libx264", {"preset": "veryfast", "crf": "18", "bf": "0"})
_VP9 = ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "crf": "24", "b": "0"})
ENCODERS: dict[str, tuple[str, dict[str, str]]] = {".mp4": _H264, ".mkv": _H264, ".webm": _VP9}
_CONTAINERS = {".mp4": "mp4", ".mkv": "matroska", ".webm": "webm"}
_FALL, _RISE = 0.95, 1.25  # how fast the colour scale changes, from one frame to the next


class Encoder(Protocol):
    """Writes the pictures of one segment."""

    def __call__(self, picture: Array, number: int) -> None:
        """Take an (H, W, 3) uint8 RGB picture that is shown at `number` / rate seconds."""

    def close(self) -> None:
        """Write out what is left."""


class Segment:
    """A small video of its own, in the container of the output."""

    def __init__(self, path: Path, rate: Fraction) -> None:
        self._container = pyav().open(str(path), "w")
        name, options = ENCODERS[path.suffix.lower()]
        self._stream = self._container.add_stream(name, rate=rate, options=options)
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = 1 / rate
        self._begun = False

    def __call__(self, picture: Array, number: int) -> None:
        """Encode a picture."""
        frame = pyav().VideoFrame.from_ndarray(picture, format="rgb24")
        if not self._begun:
            self._stream.height, self._stream.width = picture.shape[:2]
            self._begun = True
        frame.pts = number
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write out what is left."""
        self._container.mux(self._stream.encode())
        self._container.close()


class PictureVideo(Writer):
    """A video of pictures of the flows.

    `maximum` px has full colour; without it the longest vector, smoothed so that colours do not
    flicker. A broken frame has no picture: the one before is shown for longer.
    """

    piece = 64

    def __init__(
        self,
        output: Path,
        parts: Path,
        rate: Fraction,
        panels: Sequence[str],
        maximum: float | None = None,
        encoder: Callable[[Path, Fraction], Encoder] = Segment,
    ) -> None:
        super().__init__()
        self.output, self.rate, self.panels, self.maximum = output, rate, panels, maximum
        self._parts, self._encoder = parts, encoder
        self._segment: Encoder | None = None
        self._scale: Tensor | None = None
        self._next = 0  # flow

    def resume(self, done: int) -> None:
        """Remove segments that were not closed."""
        self._next = done
        for path in self._parts.glob(f"*{self.output.suffix}"):
            if path.stem.startswith("open_") or int(path.stem) >= done:
                path.unlink()

    def prepare(self, flow: FrameFlow) -> Array:
        """Draw a flow."""
        return draw(self.panels, flow, self._maximum(flow.flow))

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Encode a picture."""
        if prepared is not None:
            if self._segment is None:
                self._first = self._next
                self._segment = self._encoder(self._path("open_"), self.rate)
            self._segment(prepared, self._next - self._first)
        self._next += 1

    def commit(self) -> None:
        """Close the segment."""
        if self._segment is not None:
            self._segment.close()
            self._path("open_").replace(self._path())
            self._segment = None
        if self._scale is not None:
            self.memory["scale"] = float(self._scale)

    def finish(self) -> Path:
        """Join the segments."""
        segments = sorted(self._parts.glob(f"*{self.output.suffix}"))
        with replacing(self.output) as temporary:
            join(segments, temporary, self.output.suffix, self.rate)
        return self.output

    def _path(self, prefix: str = "") -> Path:
        return self._parts / f"{prefix}{self._first:09d}{self.output.suffix}"

    def _maximum(self, flow: Tensor) -> Tensor:
        """Full colour in px, as a number on the device: nobody has to wait for it."""
        if self.maximum is not None:
            return torch.tensor(self.maximum, device=flow.device)
        longest = torch.hypot(*flow.nan_to_num(0)).max().clamp(min=CALMEST)
        if self._scale is None:
            self._scale = longest.new_tensor(self.memory["scale"]) if self.memory else longest
        self._scale = longest.clamp(_FALL * self._scale, _RISE * self._scale)
        return self._scale


def join(segments: Sequence[Path], output: Path, suffix: str, rate: Fraction) -> None:
    """Copy the packets of segments, named by their first flow's number, into one video."""
    stream: Any = None
    with pyav().open(str(output), "w", format=_CONTAINERS[suffix.lower()]) as target:
        for segment in segments:
            with pyav().open(str(segment)) as source:
                stream = stream or target.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.size:  # the last one is empty
                        number = int(segment.stem) + round(packet.pts * packet.time_base * rate)
                        packet.stream, packet.time_base = stream, 1 / rate
                        packet.pts = packet.dts = number
                        packet.duration = 1
                        target.mux(packet)
