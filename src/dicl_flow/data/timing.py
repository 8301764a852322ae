"""Frames of a video as they are decoded, numbered by their times; the places of lost frames."""

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..fence import LostDecoderError, fenced, fenced_stream, interpreting
from ..files import Array, Plate, encode_image, write_files
from ..files.reading import check_decoded, most_bytes
from .frames import Look, look_of, open_video, pyav, to_array


class Shot(NamedTuple):
    """A frame that is not decoded yet: many are skipped."""

    name: str
    time: float | None
    """Seconds from the start; None for images, which have no time."""
    read: Callable[[], Array]
    """Returns (H, W, 3) RGB; raises an `InputError` if the frame is broken."""
    scene: str = ""
    """Flow is estimated only within a scene."""
    plate: Callable[[], Plate] | None = None
    """Returns all that its file has, if that is to be written."""


class Decoded(NamedTuple):
    """A frame that comes out of a decoder, or the `failure` that comes instead of one."""

    time: float | None = None
    seconds: float = 0.0
    """How long it is shown, as far as the file says it."""
    read: Callable[[], Array] | None = None
    failure: str = ""
    whole: bool = False
    """Whether it is known that the file lacks no bytes up to here."""


@dataclass(frozen=True)
class Timing:
    """What a video says of the times of its frames, in seconds."""

    rate: float | None
    steady: bool
    """Whether the rate is constant."""
    start: float = 0.0
    end: float | None = None
    """When the last frame ends; None if the video does not say it."""
    slack: float = 0.0
    """By how much the end may be wrong."""

    def room(self, start: float, end: float) -> int:
        """How many frames fit in between."""
        return max(0, round((end - start) * (self.rate or 0)))


SLACK = 1.0  # seconds
_REGULAR = 0.75  # at a constant rate, at least this share of frames come when they are expected
_HEADERS = 128  # bytes: more between two packets of a Matroska file belong to none of them


def in_place(decoded: Iterable[Decoded], timing: Timing, number: int = 0) -> Iterator[Shot]:
    """Number frames by their times, from `number` on; for a lost one, a shot raises the reason.

    At a constant rate, frames are lost where the times of two frames leave room for others, and
    where the last one ends before the video does. At a variable rate, and as long as the file is
    known to be whole, frames are numbered as they come, and each failure counts as one.
    """
    places = _Places(timing, number)
    for frame in decoded:
        if frame.read is None:
            yield from places.fail(frame.failure)
        else:
            yield from places.put(frame, frame.read)
    yield from places.end()


class _Places:
    """Puts frames in their places; `number` is the next."""

    def __init__(self, timing: Timing, number: int) -> None:
        self.timing, self.number = timing, number
        self._last, self._until = -inf, timing.start  # of the last frame: its time and its end
        self._gap = inf  # the end of the frame before that
        self._begun, self._failure = False, ""
        self._expected = self._frames = 0

    def fail(self, failure: str) -> Iterator[Shot]:
        """A frame failed; at a constant rate, the next time shows where it belongs."""
        self._failure = failure
        if not self.timing.steady:
            yield from self._lost(1, failure)

    def put(self, frame: Decoded, read: Callable[[], Array]) -> Iterator[Shot]:
        """Yield what is lost before a frame, and the frame."""
        rate, time = self.timing.rate, frame.time
        if time is None:
            time = self.number / rate if rate else None
        elif self.timing.steady:
            if self._gap < time < self._last:
                return  # it belongs where a gap was left already
            yield from self._lost(*self._missing(time, frame.whole))
            self._gap = self._until
        yield Shot(f"frame_{self.number:06d}", time, read)
        self.number, self._begun, self._failure = self.number + 1, True, ""
        if time is not None:
            self._last, self._until = time, time + max(frame.seconds, 1 / rate if rate else 0)

    def end(self) -> Iterator[Shot]:
        """Yield what is lost at the end."""
        timing, count, reason = self.timing, int(bool(self._failure)), self._failure
        if timing.end is not None and timing.end - self._until > timing.slack:
            count = max(count, timing.room(self._until, timing.end) if timing.steady else 1)
            reason = (
                f"lost: frames end at {self._until:.2f} s, but the file should last until "
                f"{timing.end:.2f} s"
            )
        yield from self._lost(count, reason)

    def _missing(self, time: float, whole: bool) -> tuple[int, str]:
        """How many frames are lost before the one at `time`, and why."""
        room = self.timing.room(self._until, time)
        regular = self._begun and self._expected >= _REGULAR * self._frames and not whole
        self._expected, self._frames = self._expected + (room == 0), self._frames + 1
        gap = f"lost: the file has no frame from {self._until:.2f} s to {time:.2f} s"
        return (room if regular or self._failure else 0), self._failure or gap

    def _lost(self, count: int, reason: str) -> Iterator[Shot]:
        rate = self.timing.rate
        for place in range(count):
            time = self._until + place / rate if rate else None
            yield Shot(f"frame_{self.number:06d}", time, partial(_refuse, reason))
            self.number, self._failure = self.number + 1, ""


def read_timing(container: Any) -> Timing:
    """What an opened video says of its times; where the rate varies, FFmpeg's two rates differ."""
    stream = container.streams.video[0]
    rate = float(stream.average_rate or stream.guessed_rate or 0) or None
    steady = bool(rate and abs(float(stream.base_rate or 0) / rate - 1) < 0.05)
    start = float((stream.start_time or 0) * stream.time_base)
    end, sure = _stated_end(container, stream, start)
    return Timing(rate, steady, start, end, 0.0 if steady and sure else SLACK)


def _stated_end(container: Any, stream: Any, start: float) -> tuple[float | None, bool]:
    """When the last frame ends, in seconds, if the file states it; and whether that is sure."""
    kind, length = container.format.name, stream.metadata.get("DURATION", "")
    if "mp4" in kind and stream.duration:
        return start + float(stream.duration * stream.time_base), True
    if "matroska" in kind and re.fullmatch(r"\d+:\d+:\d+(\.\d+)?", length):
        hours, minutes, seconds = map(float, length.split(":"))
        return hours * 3600 + minutes * 60 + seconds, True
    if "matroska" in kind and container.duration:
        return container.duration / 1e6, len(container.streams) == 1  # or it may be that of sound
    if kind == "avi" and stream.frames and stream.average_rate:
        return start + float(stream.frames / stream.average_rate), True
    return None, False  # of other formats, FFmpeg's numbers are estimates


def decode(container: Any, *, deep: bool = False) -> Iterator[Decoded]:
    """Frames as they are decoded, `deep` in 16 bits; a damaged one raises its error when read."""
    errors = pyav().FFmpegError
    packets, bytes_read = container.demux(), _Bytes(container)
    video = container.streams.video[0].index
    while True:
        try:
            packet = next(packets, None)  # no more packets after a demuxing error
            if packet is not None:
                bytes_read.add(packet)
                if packet.stream.index != video:
                    continue
            frames = None if packet is None else packet.decode()
        except errors as error:
            bytes_read.whole = False
            yield Decoded(failure=f"cannot be decoded: {error.strerror}")
            continue
        if frames is None:
            return
        for frame in frames:
            read, seconds = partial(to_array, frame, deep), (frame.duration or 0) * frame.time_base
            if frame.is_corrupt:
                read = partial(_refuse, "cannot be decoded: its data are damaged")
                bytes_read.whole = False
            yield Decoded(frame.time, float(seconds), read, whole=bytes_read.whole)


class _Bytes:
    """Looks for bytes of a Matroska file that no packet has: a player skips what is damaged.

    Its packets say when they are shown, but not for how long: a hole in their times is a frame
    that is shown longer, if no bytes are missing, and lost frames otherwise.
    """

    def __init__(self, container: Any) -> None:
        self.whole = "matroska" in container.format.name
        self._end: int | None = None

    def add(self, packet: Any) -> None:
        """The next packet, of any stream."""
        if not packet.size or packet.pos is None:
            return
        if packet.is_corrupt or (self._end is not None and packet.pos - self._end > _HEADERS):
            self.whole = False
        self._end = packet.pos + packet.size


class VideoFile(NamedTuple):
    """What a video file states."""

    timing: Timing
    stated: int | None
    """The number of frames, if the file has it."""
    expected: int | None
    """The same, or what follows from rate and duration."""
    look: Look | None


def read_video_file(path: Path, container: str | None = None) -> VideoFile:
    """Read what a video states, without decoding it; `container` as for `open_video`."""
    with _naming(path):
        answer = _read_video_file(path, container)
        with interpreting():
            return _video_file(*answer)


def _video_file(
    timing: tuple[Any, ...], stated: int | None, count: int | None, look: tuple[Any, ...] | None
) -> VideoFile:
    """Check what a decoder answered."""
    known = Timing(*timing)
    numbers = (known.start, known.end or 0, known.slack, known.rate or 1, stated or 0, count or 0)
    if not all(map(isfinite, numbers)) or (known.rate or 1) < 0:
        raise ValueError
    if look is None:
        return VideoFile(known, stated, count, None)
    bits, chroma, (primaries, transfer, matrix, extent), alpha = look
    tags = (int(primaries), int(transfer), int(matrix), int(extent))
    return VideoFile(known, stated, count, Look(int(bits), str(chroma), tags, bool(alpha)))


@fenced(lambda: 0)
def _read_video_file(path: Path, container: str | None) -> tuple[Any, ...]:
    with open_video(path, container) as opened:
        stream, timing = opened.streams.video[0], read_timing(opened)
        stated, look = stream.frames or None, look_of(stream)
        count = stated
        if timing.rate and timing.end is not None and not timing.slack:
            count = round((timing.end - timing.start) * timing.rate)
        elif count is None and timing.rate and opened.duration:
            count = round(opened.duration / 1e6 * timing.rate)  # FFmpeg counts microseconds
    return astuple(timing), stated, count, None if look is None else tuple(look)


def video_shots(
    path: Path,
    timing: Timing,
    container: str | None = None,
    *,
    deep: bool = False,
    seconds: float | None = None,
) -> Iterator[Shot]:
    """Yield the frames of a video; behind the fence, each is read before the next one.

    With `seconds`, from a key frame before that, numbered by their times; none if seeking
    misses it.
    """
    found = _video_shots(path, astuple(timing), container, deep, seconds)
    with _naming(path):
        for head, read in found:
            with interpreting():
                name, time = head
                if read is None or not isfinite(time or 0) or not _NAME.fullmatch(name):
                    raise ValueError
            yield Shot(name, time, partial(_read_frame, read))


_NAME = re.compile(r"frame_[0-9]{6,9}")  # files are named after it


def _read_frame(read: Callable[[], Array]) -> Array:
    image = read()
    check_decoded(image)
    with interpreting():
        if image.dtype.name not in ("uint8", "uint16") or image.shape[2:] != (3,):
            raise TypeError
    return image


@fenced_stream(most_bytes)
def _video_shots(
    path: Path,
    timing: tuple[Any, ...],
    container: str | None,
    deep: bool,
    seconds: float | None,
) -> Iterator[tuple[tuple[Any, ...], Callable[[], Array] | None]]:
    known, number = Timing(*timing), 0
    with open_video(path, container) as opened:
        decoded: Iterable[Decoded] = decode(opened, deep=deep)
        if seconds is not None:
            stream = opened.streams.video[0]
            opened.seek(int(seconds / stream.time_base), stream=stream)
            first = next(iter(decoded), Decoded())
            if first.time is None or first.time > seconds or known.rate is None:
                return
            number = round((first.time - known.start) * known.rate)
            decoded = chain([first], decoded)
        for shot in in_place(decoded, known, number):
            yield (shot.name, shot.time), shot.read


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in an error of its decoder, as all others of a video do."""
    try:
        yield
    except LostDecoderError as error:
        raise InputError(f"{path}: {error}") from None


def video_frames(path: Path) -> Iterator[Array]:
    """Yield the frames of a video, (H, W, 3) uint8 RGB; a lost or damaged one is an error.

    Without it, all later frames would have wrong numbers, and a pair would span the gap.
    """
    for number, shot in enumerate(video_shots(path, read_video_file(path).timing), 1):
        try:
            image = shot.read()
        except InputError as error:
            raise InputError(
                f"{path}: frame {number}, counted from 1, {error}; copy the file again, or "
                f"give the frames as a folder"
            ) from None
        yield image


def extract_frames(video: Path) -> Path:
    """Write the frames as frame_000001.png, … into a temporary folder, removed at exit.

    The folder is created below TMPDIR. A frame of 1920x1080 takes about 3 MB.
    """
    folder = Path(tempfile.mkdtemp(prefix="dicl-flow-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, frame in enumerate(video_frames(video), start=1):
        path = folder / f"frame_{number:06d}.png"
        write_files({path: encode_image(path, frame)})
    return folder


def _refuse(reason: str) -> Array:
    raise InputError(reason)
