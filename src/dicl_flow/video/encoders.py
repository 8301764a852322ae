"""Encoders that users ask for by FFmpeg's name, such as those of a graphics card."""

from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

from ..data.video_frames import pyav
from ..errors import InputError
from .encoding import CODINGS, CONTAINERS, Coding

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
        raise InputError(f"`encoder` is NAME or NAME:KEY=VALUE:…, and {pair!r} is no KEY=VALUE")
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
