"""How videos are encoded: codecs and containers, an encoder that was asked for, what is lost."""

from contextlib import suppress
from fractions import Fraction
from io import BytesIO
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from ..data.frames import Look, pyav
from ..errors import InputError
from ..files import AS_USUAL, Reading
from .frames import Moment, Source, open_source
from .sound import Sound, find_sound

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


def check_rate(output: Path, rate: float) -> None:
    """Refuse more frames per second than a format can show."""
    if output.suffix.lower() == ".gif" and rate > GIF_RATE:
        raise InputError(
            f"a GIF shows at most {GIF_RATE} frames per second, {output} would need {rate:g}; "
            "give a lower rate, or write a video"
        )


def output_kind(output: Path) -> str:
    """Return what an output is, by its name: video, array or folder."""
    suffix = output.suffix.lower()
    if output.is_dir() or not suffix:
        return "folder"
    if suffix in CODINGS:
        pyav()  # complain now if it is not installed
        return "video"
    if suffix == ".npy":
        return "array"
    raise InputError(
        f"{output}: a video must end in {', '.join(CODINGS)}, an array in .npy, a folder in nothing"
    )


class Film(NamedTuple):
    """A clip that becomes another one, frame by frame: a video, or images in a folder."""

    source: Source
    """Its frames, in the depth that is written."""
    rate: float
    coding: Coding | None
    """How the video is encoded; None: images."""
    sound: Sound | None
    notes: dict[str, str]
    """What to print of the sound."""


def plan_film(
    clip: str,
    output: Path,
    fps: float | None = None,
    encoder: str | None = None,
    reading: Reading = AS_USUAL,
    *,
    start: Moment | None = None,
    slower: int = 1,
) -> Film:
    """Open a clip from which `output` is made, `slower` times as slow; refuse what cannot be."""
    kind = output_kind(output)
    if kind == "array":
        raise InputError(f"{output}: a clip is written as a video or a folder of images")
    coding = None
    if encoder is not None:  # refuse it before the clip is opened
        if kind == "folder":
            raise InputError(f"`encoder` is for a video, and {output} is a folder")
        coding = find_coding(output, encoder)
    source = open_source(clip, reading=reading)
    source.check_clip()
    if kind == "video":
        coding = coding or find_coding(output, look=source.look)
        if source.look and output.suffix.lower() != ".gif":
            coding = coding._replace(tags=source.look.stated_tags)
    if coding is None or coding.bits > 8:
        source = open_source(clip, keep_depth=True, keep_plates=coding is None, reading=reading)
    rate = fps or source.rate or STILL_RATE
    check_rate(output, rate)
    same_time = isclose(rate, (source.rate or 0) * slower, rel_tol=1e-3)
    container = CONTAINERS.get(output.suffix.lower())
    sound, notes = find_sound(Path(clip), start, container, same_time=same_time)
    return Film(source, rate, coding, sound, notes)
