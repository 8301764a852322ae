"""Show flow while frames arrive: those that come faster than flow is computed are dropped."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Condition, Event, Thread
from time import monotonic

from torch import Tensor

from ..data.timing import Shot
from ..errors import InputError
from ..estimation.estimator import FlowSequence
from ..files import encode_image, to_uint8
from .coding import STILL_RATE
from .flows import FrameFlow, Pairs
from .frames import Frame, Frames, Source
from .movies import smooth_scale
from .writers import draw


@dataclass
class LiveState:
    """The numbers of a live view."""

    frames: int = 0
    """That arrived."""
    flows: int = 0
    dropped: int = 0
    """Frames that a newer one has replaced before their flow was begun."""
    broken: int = 0
    frames_per_second: float = 0.0
    """Flows of the last seconds."""
    latency_ms: float = 0.0
    """From the arrival of the last frame that is shown to its picture."""
    size: str = ""
    ended: bool = False


def paced(source: Source, stop: Event, rate: float | None = None) -> Source:
    """Deliver the frames of a file at the time they have in it; images at `rate`."""
    rate = rate or source.rate or STILL_RATE

    def shots() -> Iterator[Shot]:
        start = monotonic()
        for number, shot in enumerate(source.shots()):
            due = start + (number / rate if shot.time is None else shot.time)
            stop.wait(max(0.0, due - monotonic()))
            if stop.is_set():
                return
            yield shot

    return replace(source, shots=shots)


_LOOK = 0.2  # seconds between looks whether to stop, while no frame comes


class Newest:
    """Reads frames in another thread, and keeps the newest for whoever takes it."""

    def __init__(self, frames: Frames, state: LiveState, stopped: Callable[[], bool]) -> None:
        self._frames, self._state, self._stopped = frames, state, stopped
        self._changed = Condition()
        self._frame: Frame | None = None
        self._arrived, self._over = 0.0, False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._read, name="camera", daemon=True)

    def __iter__(self) -> Generator[tuple[Frame, float], None, None]:
        """Yield the newest frame and when it arrived, each at most once; the last one always."""
        self._thread.start()
        try:
            while not self._stopped():
                with self._changed:
                    self._changed.wait_for(lambda: self._frame is not None or self._over, _LOOK)
                    frame, self._frame = self._frame, None
                    arrived, over = self._arrived, self._over
                if frame is not None:
                    yield frame, arrived
                elif over:
                    break
            if self._error is not None:
                raise self._error
        finally:
            self._over = True

    def _read(self) -> None:
        try:
            with closing(self._frames):
                for frame in self._frames:
                    if self._over:
                        return
                    self._put(frame)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify()

    def _put(self, frame: Frame) -> None:
        with self._changed:
            self._state.frames += 1
            if frame.image is None:
                self._state.broken += 1
                return
            self._state.dropped += self._frame is not None
            self._frame, self._arrived = frame, monotonic()
            self._changed.notify()


_SPAN = 5.0  # seconds over which the rate is taken


class LivePictures:
    """Pictures of the flow from each frame that is used to the next one."""

    def __init__(
        self,
        frames: Frames,
        sequence: FlowSequence,
        panels: tuple[str, ...] = ("frame", "wheel"),
        maximum: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state = LiveState()
        self._newest, self._stopped = Newest(frames, self.state, stopped), stopped
        self._sequence = sequence
        self._panels, self._maximum = panels, maximum
        self._scale: Tensor | None = None
        self._times: list[float] = []

    def show(self, put: Callable[[bytes], None]) -> LiveState:
        """Pass each picture to `put`, as a JPEG file, until the frames end or it is stopped."""
        before: Frame | None = None
        with Pairs(self._sequence, 1) as pairs, closing(iter(self._newest)) as newest:
            for frame, arrived in newest:
                if before is not None and _alike(before, frame):
                    assert before.image is not None
                    assert frame.image is not None
                    estimate = pairs.begin(before.image, frame.image).result()
                    put(self._draw(FrameFlow(before, frame, estimate)))
                    self._count(frame, arrived)
                before = frame
        self.state.ended = True
        if not self.state.flows and not self._stopped():
            raise InputError("a flow needs at least two frames of one size")
        return self.state

    def _draw(self, flow: FrameFlow) -> bytes:
        if self._maximum is None:
            self._scale = smooth_scale(flow.flow, self._scale)
        else:
            self._scale = flow.flow.new_tensor([self._maximum] * 2)
        picture = draw(self._panels, flow, self._scale, key=True)()
        return encode_image("view.jpg", to_uint8(picture))

    def _count(self, frame: Frame, arrived: float) -> None:
        now, state = monotonic(), self.state
        assert frame.image is not None
        self._times = [time for time in self._times if now - time < _SPAN] + [now]
        span = now - self._times[0]
        state.flows += 1
        state.frames_per_second = round((len(self._times) - 1) / span, 2) if span > 0 else 0.0
        state.latency_ms = round(1000 * (now - arrived), 1)
        state.size = f"{frame.image.shape[1]}x{frame.image.shape[0]}"


def _alike(one: Frame, two: Frame) -> bool:
    assert one.image is not None
    assert two.image is not None
    return one.image.shape == two.image.shape and one.scene == two.scene
