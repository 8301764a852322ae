"""Videos that are written while flows arrive, in closed segments encoded side by side."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore, Condition
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..data.frames import Look, pyav
from ..errors import InputError
from ..estimation.compute import usable_cores
from ..estimation.warping import interpolate_tensors, to_picture, to_tensor
from ..files import Array, Plate, encode_plate, naming, replacing, to_uint8, write_files
from ..pictures.visualize import CALMEST, MOST
from .flows import FrameFlow
from .frames import Frame
from .sound import Sound, copying
from .writers import FolderWriter, Prepared, Writer, check_one_size, draw

STILL_RATE = 25.0  # frames per second of images, which have no time
GIF_RATE = 50  # frames per second: viewers show a faster GIF at 10


class Coding(NamedTuple):
    """How FFmpeg encodes pictures."""

    codec: str
    pixels: str
    options: dict[str, str]
    at_once: int | None = None
    """How many segments; None: one for each core."""
    tags: tuple[int, int, int, int] | None = None
    """FFmpeg's numbers of primaries, transfer, matrix and range; None: not said."""

    @property
    def bits(self) -> int:
        """Of a value."""
        return 10 if self.pixels.endswith("10le") else 8

    @property
    def chroma(self) -> str:
        """How many values there are of colour."""
        return "4:2:2" if "422" in self.pixels else "4:2:0"


# With AVX-512, x264's macroblock tree (core 165) reads memory that it has not written: the same
# pictures had other bytes in a few of a hundred segments. Without it, crf 21 is as good as 18.
_H264 = Coding("libx264", "yuv420p", {"preset": "veryfast", "crf": "21", "mbtree": "0"})
_VP9_OPTIONS = {"deadline": "realtime", "cpu-used": "8", "crf": "24", "b": "0"}
_VP9 = Coding("libvpx-vp9", "yuv420p", _VP9_OPTIONS)
_PRORES = Coding("prores_ks", "yuv422p10le", {"profile": "2"})  # ProRes 422
CODINGS = {".mp4": _H264, ".mov": _H264, ".mkv": _H264, ".webm": _VP9}
CODINGS[".gif"] = Coding("ffv1", "bgr0", {})
"""How segments are encoded, by the suffix of the video; a GIF is made from them at the end."""
CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}


class Segment:
    """A short, complete video; one thread encodes it, so its bytes do not depend on the cores."""

    def __init__(self, path: Path, rate: Fraction, coding: Coding) -> None:
        container = CONTAINERS.get(path.suffix.lower(), "nut")  # a GIF's are lossless video
        self._file = path.open("wb")  # PyAV would leave its own open if the disk is full
        self._container = pyav().open(self._file, "w", format=container)
        self._stream = self._container.add_stream(coding.codec, rate=rate, options=coding.options)
        self._stream.pix_fmt = coding.pixels
        self._stream.codec_context.time_base = 1 / rate
        self._stream.codec_context.thread_count = 1
        self._stream.codec_context.max_b_frames = 0  # so that packets are in the order of pictures
        self._coding, self._begun = coding, False
        if coding.tags is not None:
            _tag(self._stream.codec_context, coding.tags)

    def __call__(self, picture: Array, number: int) -> None:
        """Encode an (H, W, 3) uint8 or uint16 RGB picture, shown at `number` / rate seconds."""
        kind = "rgb48le" if picture.dtype == np.uint16 else "rgb24"
        frame = pyav().VideoFrame.from_numpy_buffer(np.ascontiguousarray(picture), kind)
        if self._coding.tags is not None:
            frame = _converted(frame, self._coding.pixels, self._coding.tags)
        if not self._begun:
            self._stream.height, self._stream.width = picture.shape[:2]
            self._begun = True
        frame.pts = number
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write out what is left."""
        with self._file:
            self._container.mux(self._stream.encode())
            self._container.close()


_MATRICES = (1, 4, 5, 6, 7, 9)  # those of FFmpeg that swscale knows by the same number


def _tag(target: Any, tags: tuple[int, int, int, int]) -> None:
    target.color_primaries, target.color_trc, target.colorspace, target.color_range = tags


def _converted(frame: Any, pixels: str, tags: tuple[int, int, int, int]) -> Any:
    """A picture in the matrix and range of its tags."""
    matrix, extent = tags[2:]
    how = {"dst_colorspace": matrix if matrix in _MATRICES else None, "dst_color_range": extent}
    converted = frame.reformat(format=pixels, **{key: value for key, value in how.items() if value})
    _tag(converted, tags)
    return converted


def even(picture: Array) -> Array:
    """Repeat the last row or column if a side is odd: video encoders need even sides."""
    odd = [side % 2 for side in picture.shape[:2]]
    return np.pad(picture, [(0, odd[0]), (0, odd[1]), (0, 0)], "edge") if any(odd) else picture


def join(
    segments: Sequence[Path],
    output: Path,
    suffix: str,
    rate: Fraction,
    sound: Sound | None = None,
) -> None:
    """Join segments, which are named by the number of their first picture."""
    if suffix.lower() == ".gif":
        _write_gif(segments, output, rate)
    else:
        _copy_packets(segments, output, CONTAINERS[suffix.lower()], rate, sound)


def _copy_packets(
    segments: Sequence[Path], output: Path, container: str, rate: Fraction, sound: Sound | None
) -> None:
    """Join without encoding again."""
    stream: Any = None
    number = -1
    with (
        output.open("wb") as file,
        pyav().open(file, "w", format=container) as target,
        ExitStack() as opened,
    ):
        for segment in segments:
            with pyav().open(str(segment)) as source:
                if stream is None:  # both before the first packet
                    stream = _copied(source.streams.video[0], target)
                    copy_sound = opened.enter_context(copying(sound, target))
                for packet in source.demux(video=0):
                    if packet.size:  # the last one is empty
                        number = int(segment.stem) + round(packet.pts * packet.time_base * rate)
                        packet.stream, packet.time_base = stream, 1 / rate
                        packet.pts = packet.dts = number
                        packet.duration = 1
                        copy_sound(float(number / rate))
                        target.mux(packet)
        if stream is not None:
            copy_sound(float((number + 1) / rate))


def _copied(stream: Any, target: Any) -> Any:
    """Add a stream with the same tag, by which players tell ProRes 422 from 422 HQ."""
    copy = target.add_stream_from_template(stream)
    if target.format.name in ("mov", "mp4"):
        copy.codec_context.codec_tag = stream.codec_context.codec_tag
    return copy


def _write_gif(segments: Sequence[Path], output: Path, rate: Fraction) -> None:
    """Encode again, each picture with its own palette of 256 colours."""
    hundredth = Fraction(1, 100)  # of a second, the unit of time in a GIF
    with output.open("wb") as file, pyav().open(file, "w", format="gif") as target:
        stream = target.add_stream("gif", rate=rate)
        stream.pix_fmt, stream.codec_context.time_base = "pal8", hundredth
        palette: Any = None
        for segment in segments:
            with pyav().open(str(segment), format="nut") as source:
                for frame in source.decode(video=0):
                    number = int(segment.stem) + round(frame.pts * frame.time_base * rate)
                    frame = frame.reformat(format="rgb24")
                    frame.pts, frame.time_base = round(number / rate / hundredth), hundredth
                    if palette is None:
                        palette = _palette(frame)
                        stream.height, stream.width = frame.height, frame.width
                    palette.push(frame)
                    target.mux(stream.encode(palette.pull()))
        target.mux(stream.encode())


def _palette(frame: Any) -> Any:
    """Return a filter that computes a palette for each picture."""
    graph = pyav().filter.Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
    )
    split, choose = graph.add("split"), graph.add("palettegen", "stats_mode=single")
    use, sink = graph.add("paletteuse", "new=1"), graph.add("buffersink")
    source.link_to(split)
    split.link_to(choose, 0, 0)
    split.link_to(use, 1, 0)
    choose.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    return graph


_PIXELS = ("yuv420p", "nv12", "yuv422p10le", "yuv422p")  # what players show; what editors use
_PROFILES = {"prores_ks": "2", "dnxhd": "dnxhr_hqx"}  # of 10 bits and 4:2:2, in any size


def find_coding(output: Path, encoder: str | None = None, look: Look | None = None) -> Coding:
    """Return how to encode a video: by its suffix, or with an `encoder` of FFmpeg.

    "h264_nvenc" is an encoder, "libx264:crf=23:preset=slow" one with options. It is tried. `look`
    is that of the source: with more than 8 bits and 4:2:0, a .mov is ProRes.
    """
    suffix = output.suffix.lower()
    if encoder is None:
        is_deep = look is not None and look.is_deep and suffix == ".mov"
        return _PRORES if is_deep else CODINGS[suffix]
    if suffix not in CONTAINERS:
        raise InputError(f"`encoder` is for {', '.join(CONTAINERS)}; {output} is none of them")
    name, *pairs = encoder.split(":")
    for pair in pairs:
        if pair.partition("=")[0] in ("", pair):
            raise InputError(
                f"`encoder` must be NAME or NAME:KEY=VALUE:…, and {pair!r} is no KEY=VALUE"
            )
    options = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    codec = _codec(name)
    with pyav().open(BytesIO(), "w", format=CONTAINERS[suffix]) as container:
        if not {codec.name, codec.canonical_name} & set(container.supported_codecs):
            kind = codec.canonical_name
            raise InputError(f"`encoder`: {name} makes {kind}, which {suffix} cannot hold")
    if name in _PROFILES:
        options = {"profile": _PROFILES[name], **options}
    formats = [known.name for known in codec.video_formats or ()] or list(_PIXELS[:2])
    pixels = [known for known in _PIXELS if known in formats]
    if not pixels:
        raise InputError(f"`encoder`: {name} does not take pictures of this program")
    at_once = 2 if _is_hardware(codec) else None  # cards encode few videos at a time
    for other in pixels[:-1]:
        with suppress(InputError):  # a profile may take others of its pixels
            return _tried(Coding(name, other, options, at_once))
    return _tried(Coding(name, pixels[-1], options, at_once))


def lost_of(look: Look | None, coding: Coding | None) -> dict[str, str]:
    """Say what of a source is lost in a video; in images, None, only its alpha is."""
    if look is None:
        return {}
    if coding is None:
        return {"lost": "alpha, which is not read from videos"} if look.alpha else {}
    if look.bits <= coding.bits and look.chroma in ("4:2:0", coding.chroma) and not look.alpha:
        return {}
    known = coding.bits, coding.chroma
    advice = "" if known == (10, "4:2:2") else "; ProRes in .mov has 10 bits, 4:2:2"
    return {"lost": f"{look} become {coding.bits} bits, {coding.chroma}{advice}"}


def _codec(name: str) -> Any:
    try:
        codec = pyav().Codec(name, "w")
    except ValueError:
        codec = None
    if codec is None or codec.type != "video":
        raise InputError(f"`encoder`: FFmpeg, as PyAV has it here, has no video encoder {name!r}")
    return codec


def _is_hardware(codec: Any) -> bool:
    return bool(codec.capabilities & pyav().codec.codec.Capabilities.hardware)


def _tried(coding: Coding) -> Coding:
    """Refuse an encoder that does not start, now rather than after the first flows."""
    context = pyav().CodecContext.create(coding.codec, "w")
    context.width, context.height, context.pix_fmt = 256, 256, coding.pixels
    context.time_base, context.options = Fraction(1, 25), dict(coding.options)
    context.max_b_frames = 0
    try:
        context.open()
    except pyav().error.FFmpegError as error:
        raise InputError(f"`encoder`: {coding.codec} does not start: {error.strerror}") from None
    if context.options:  # those that it did not take
        raise InputError(f"`encoder`: {coding.codec} has no option {', '.join(context.options)}")
    if context.has_b_frames:
        raise InputError("`encoder` must keep the order of pictures; leave out bf")
    return coding


_WAITING = 1 << 30  # bytes of pictures that wait for their encoders; one picture always may


_Pictures: TypeAlias = "SimpleQueue[tuple[Array, int] | None]"
"""The numbered pictures of a segment; None: the end."""


class SideBySide:
    """Encodes at most `at_once` segments at a time, while pictures arrive for the last of them.

    A file gets its name when it is complete. If an encoder fails, the next picture raises its
    error, which names the `output`.
    """

    def __init__(
        self,
        output: Path,
        encoder: Callable[[Path], Segment],
        at_once: int,
        keep_depth: bool = False,
    ) -> None:
        self._output, self._encoder, self._keep_depth = output, encoder, keep_depth
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
                    encode(even(picture if self._keep_depth else to_uint8(picture)), number)
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
