"""When a run ends before its last step."""

import signal
from time import monotonic
from types import FrameType, TracebackType


class StopSignal:
    """Turns SIGTERM and SIGINT into a wish that the loop reads between two steps."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "StopSignal":
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number


class Clock:
    """How far a run is: by its steps, or by its minutes where those are limited.

    A run limited to minutes plans its schedule for them: progress goes from where it
    starts to 1 in that time.
    """

    def __init__(self, steps: int, minutes: float | None, progress: float) -> None:
        self.steps, self.minutes = steps, minutes
        self.start, self.first = monotonic(), progress

    def progress(self, step: int) -> float:
        """From 0 to 1; 1 is the end."""
        by_steps = step / self.steps
        if self.minutes is None:
            return by_steps
        elapsed = (monotonic() - self.start) / (60 * self.minutes)
        return max(by_steps, min(1.0, self.first + (1 - self.first) * elapsed))
