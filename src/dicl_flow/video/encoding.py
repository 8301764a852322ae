"""Encode pictures as videos: in segments while they arrive, joined at the end; by any encoder."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..data.frames import pyav
from ..errors import InputError
from ..files import Array

STILL_RATE = 25.0  # frames per second of images, which have no time
GIF_RATE = 50  # frames per second: viewers show a faster GIF at 10


class Coding(NamedTuple):
    """How FFmpeg encodes pictures."""

    codec: str
    pixels: str
    options: dict[str, str]
    at_once: int | None = None
    """How many segments; None: one for each core."""


# With AVX-512, x264's macroblock tree (core 165) reads memory that it has not written: the same
# pictures had other bytes in a few of a hundred segments. Without it, crf 21 is as good as 18.
_H264_OPTIONS = {"preset": "veryfast", "crf": "21", "mbtree": "0"}
_H264 = Coding("libx264", "yuv420p", _H264_OPTIONS)
_VP9_OPTIONS = {"deadline": "realtime", "cpu-used": "8", "crf": "24", "b": "0"}
_VP9 = Coding("libvpx-vp9", "yuv420p", _VP9_OPTIONS)
_LOSSLESS = Coding("ffv1", "bgr0", {})
CODINGS = {".mp4": _H264, ".mov": _H264, ".mkv": _H264, ".webm": _VP9, ".gif": _LOSSLESS}
"""How segments are encoded, by the suffix of the video; a GIF is made from them at the end."""
CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}


class Encoder(Protocol):
    """Writes the pictures of one segment."""

    def __call__(self, picture: Array, number: int) -> None:
        """Encode an (H, W, 3) uint8 RGB picture, shown at `number` / rate seconds."""

    def close(self) -> None:
        """Write out what is left."""


class Segment:
    """A short, complete video; its file has the suffix of the output.

    One thread encodes it: others encode other segments, and its bytes do not depend on the cores.
    """

    def __init__(self, path: Path, rate: Fraction, coding: Coding) -> None:
        # segments of a GIF are lossless video
        container = CONTAINERS.get(path.suffix.lower(), "nut")
        self._file = path.open("wb")  # PyAV would leave its own open if the disk is full
        self._container = pyav().open(self._file, "w", format=container)
        self._stream = self._container.add_stream(coding.codec, rate=rate, options=coding.options)
        self._stream.pix_fmt = coding.pixels
        self._stream.codec_context.time_base = 1 / rate
        self._stream.codec_context.thread_count = 1
        self._stream.codec_context.max_b_frames = 0  # so that packets are in the order of pictures
        self._begun = False

    def __call__(self, picture: Array, number: int) -> None:
        """Encode a picture."""
        frame = pyav().VideoFrame.from_numpy_buffer(np.ascontiguousarray(picture), "rgb24")
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


def even(picture: Array) -> Array:
    """Repeat the last row or column if a side is odd: video encoders need even sides."""
    odd = [side % 2 for side in picture.shape[:2]]
    return np.pad(picture, [(0, odd[0]), (0, odd[1]), (0, 0)], "edge") if any(odd) else picture


def exact_rate(rate: float) -> Fraction:
    """Return the exact rate: 29.97 means 30000/1001."""
    return Fraction(rate).limit_denominator(1001)


def check_rate(output: Path, rate: float) -> None:
    """Refuse more frames per second than a format can show."""
    if output.suffix.lower() == ".gif" and rate > GIF_RATE:
        raise InputError(
            f"a GIF shows at most {GIF_RATE} frames per second, {output} would need {rate:g}; "
            "give a lower rate, or write a video"
        )


def join(segments: Sequence[Path], output: Path, suffix: str, rate: Fraction) -> None:
    """Join segments, which are named by the number of their first picture."""
    if suffix.lower() == ".gif":
        _write_gif(segments, output, rate)
    else:
        _copy_packets(segments, output, CONTAINERS[suffix.lower()], rate)


def _copy_packets(segments: Sequence[Path], output: Path, container: str, rate: Fraction) -> None:
    """Join without encoding again."""
    stream: Any = None
    with output.open("wb") as file, pyav().open(file, "w", format=container) as target:
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


def _write_gif(segments: Sequence[Path], output: Path, rate: Fraction) -> None:
    """Encode again, each picture with its own palette of 256 colours."""
    hundredth = Fraction(1, 100)  # of a second, the unit of time in a GIF
    with output.open("wb") as file, pyav().open(file, "w", format="gif") as target:
        stream = target.add_stream("gif", rate=rate)
        stream.pix_fmt, stream.codec_context.time_base = "pal8", hundredth
        palette: Any = None
        for number, frame in _numbered(segments, rate):
            frame = frame.reformat(format="rgb24")
            frame.pts, frame.time_base = round(number / rate / hundredth), hundredth
            if palette is None:
                palette = _palette(frame)
                stream.height, stream.width = frame.height, frame.width
            palette.push(frame)
            target.mux(stream.encode(palette.pull()))
        target.mux(stream.encode())


def _numbered(segments: Sequence[Path], rate: Fraction) -> Iterator[tuple[int, Any]]:
    """Decode the pictures of all segments, each with its number."""
    for segment in segments:
        with pyav().open(str(segment), format="nut") as source:
            for frame in source.decode(video=0):
                yield int(segment.stem) + round(frame.pts * frame.time_base * rate), frame


def _palette(frame: Any) -> Any:
    """A filter that computes a palette for each picture."""
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


_PIXELS = ("yuv420p", "nv12")  # what players show
_HARDWARE_AT_ONCE = 2  # segments: cards encode few videos at a time


def find_coding(output: Path, encoder: str | None = None) -> Coding:
    """Return how to encode a video: by its suffix, or with an `encoder` of FFmpeg.

    "h264_nvenc" is an encoder, "libx264:crf=23:preset=slow" one with options. It is tried.
    """
    suffix = output.suffix.lower()
    if encoder is None:
        return CODINGS[suffix]
    if suffix not in CONTAINERS:
        raise InputError(f"`encoder` is for {', '.join(CONTAINERS)}; {output} is none of them")
    name, *pairs = encoder.split(":")
    options = dict(_option(pair) for pair in pairs)
    codec = _codec(name)
    with pyav().open(BytesIO(), "w", format=CONTAINERS[suffix]) as container:
        if not {codec.name, codec.canonical_name} & set(container.supported_codecs):
            kind = codec.canonical_name
            raise InputError(f"`encoder`: {name} makes {kind}, which {suffix} cannot hold")
    formats = [known.name for known in codec.video_formats or ()] or list(_PIXELS)
    pixels = next((known for known in _PIXELS if known in formats), None)
    if pixels is None:
        raise InputError(f"`encoder`: {name} does not take pictures of this program")
    coding = Coding(name, pixels, options, _HARDWARE_AT_ONCE if _is_hardware(codec) else None)
    _try(coding)
    return coding


def _option(pair: str) -> tuple[str, str]:
    key, sign, value = pair.partition("=")
    if not (key and sign):
        raise InputError(
            f"`encoder` must be NAME or NAME:KEY=VALUE:…, and {pair!r} is no KEY=VALUE"
        )
    return key, value


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


def _try(coding: Coding) -> None:
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
