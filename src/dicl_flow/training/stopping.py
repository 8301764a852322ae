"""Stopping a run by a signal."""

import os
import signal
from threading import Thread
from time import monotonic
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ECHO = 0.5  # seconds


class StopSignal:
    """Records the first SIGTERM or SIGINT, for the loop to read between two steps.

    A second one ends the process at once, even inside native code: after the first, the default
    handlers are restored. Python handles a signal only when native code returns; until then a
    thread counts the signals and ends the process itself. Two SIGTERM within half a second count
    as one: `timeout` and some schedulers signal their child and then its whole process group.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "StopSignal":
        arrivals, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        Thread(target=_end_at_second, args=(arrivals,), daemon=True).start()
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._write_end)  # ends the thread

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for each in _SIGNALS:
            if (number, each) != (signal.SIGTERM, signal.SIGTERM):  # otherwise the thread decides
                signal.signal(each, signal.SIG_DFL)


def _end_at_second(arrivals: int) -> None:
    """Read one byte per signal; end the process at the second SIGTERM or SIGINT."""
    first, since = 0, 0.0
    while arrival := os.read(arrivals, 1):
        number = arrival[0]
        if number not in _SIGNALS:  # such as SIGCHLD of a loader process
            continue
        if not first:
            first, since = number, monotonic()
        elif (first, number) != (signal.SIGTERM, signal.SIGTERM) or monotonic() - since > _ECHO:
            os._exit(128 + number)
    os.close(arrivals)
