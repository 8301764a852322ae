"""The sound of a clip, copied into a video that lasts as long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from ..data.frames import open_video, pyav
from ..fence import current_fence
from .frames import Moment


class Sound(NamedTuple):
    """The first sound track of a file."""

    path: Path
    start: float
    """When the new video begins, in seconds of the file."""


def find_sound(
    clip: Path, start: Moment | None, container: str | None, *, same_time: bool
) -> tuple[Sound | None, dict[str, str]]:
    """Return the sound to copy, and what to print of it; both are empty if the clip has none.

    `start` is where the new video begins. `container` is FFmpeg's name of its format, None if it
    has no sound. With `same_time`, both have the same duration.
    """
    if not clip.is_file():
        return None, {}
    if current_fence() is not None:
        return None, {"sound": "dropped: it would be copied outside the fence"}
    with open_video(clip) as source:
        if (track := _track(source)) is None:
            return None, {}
        kind = track.codec_context.name
        stream = source.streams.video[0]
        begin = float((stream.start_time or 0) * stream.time_base)
        if start is not None:
            frames = start.value / float(stream.average_rate or stream.guessed_rate or 1)
            begin = start.value if start.in_seconds else begin + frames
    if container is None or not same_time:
        why = "the video has another duration" if container else "the output has none"
    elif not _holds(container, kind):
        why = f"{container} cannot hold {kind}"
    else:
        return Sound(clip, begin), {"sound": "kept"}
    return None, {"sound": f"dropped: {why}"}


def _track(source: Any) -> Any:
    """The first track whose codec is known."""
    return next((track for track in source.streams.audio if track.codec_context), None)


def _packets(source: Any, track: Any) -> Iterator[Any]:
    """Yield the packets of a track; a damaged file ends early."""
    with suppress(pyav().FFmpegError):
        yield from (packet for packet in source.demux(track) if packet.pts is not None)


def _holds(container: str, codec: str) -> bool:
    with pyav().open(BytesIO(), "w", format=container) as target:
        return codec in target.supported_codecs


@contextmanager
def copying(sound: Sound | None, target: Any) -> Iterator[Callable[[float], None]]:
    """Add a track; yield a function that copies the sound up to a time of the new video."""
    if sound is None:
        yield lambda seconds: None
        return
    with pyav().open(str(sound.path), metadata_errors="replace") as source:
        copy = target.add_stream_from_template(_track(source))
        packets = _packets(source, _track(source))
        waiting = next(packets, None)

        def copy_until(seconds: float) -> None:
            nonlocal waiting
            while waiting is not None:
                time = float(waiting.pts * waiting.time_base) - sound.start
                if time >= seconds:
                    return
                if time >= 0:
                    waiting.pts -= round(sound.start / waiting.time_base)
                    waiting.dts, waiting.stream = waiting.pts, copy
                    target.mux(waiting)
                waiting = next(packets, None)

        yield copy_until
