"""Encodes pictures in closed segments, several side by side, and joins them to a video."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore, Condition
from typing import Any, TypeAlias

import numpy as np

from ..data.frames import pyav
from ..files import Array, naming, to_uint8
from .coding import CONTAINERS, Coding
from .sound import Sound, copying


class _Sink:
    """The file of a video; after an error, FFmpeg's writes are dropped, and `check` raises it.

    PyAV prints a second error of its callbacks, or raises one that is no `OSError` at the end.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")  # PyAV would leave its own open if the disk is full
        self._error: OSError | None = None

    def __enter__(self) -> "_Sink":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with self._file:
            if kind is None:
                self.check()

    def check(self) -> None:
        """Raise the error of an earlier write, if there was one."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        return self._unless_failed(lambda: self._file.write(data), len(data))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._unless_failed(lambda: self._file.seek(offset, whence), offset)

    def tell(self) -> int:
        return self._unless_failed(self._file.tell, 0)

    def _unless_failed(self, call: Callable[[], int], instead: int) -> int:
        if self._error is None:
            try:
                return call()
            except OSError as error:
                self._error = error
        return instead


class Segment:
    """A short, complete video; one thread encodes it, so its bytes do not depend on the cores."""

    def __init__(self, path: Path, rate: Fraction, coding: Coding) -> None:
        container = CONTAINERS.get(path.suffix.lower(), "nut")  # a GIF's are lossless video
        self._file = _Sink(path)
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
        self._file.check()

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
        _Sink(output) as file,
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
                        file.check()
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
    with _Sink(output) as file, pyav().open(file, "w", format="gif") as target:
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
                    file.check()
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
