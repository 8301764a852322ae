"""The start and the end of a command, without garbage collection, and the time of each part."""

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter


class Parts:
    """The seconds of the parts of a command, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def end(self, name: str) -> None:
        """Give the time since the previous part to this one."""
        now = perf_counter()
        self.seconds[name], self._last = now - self._last, now

    def take(self, seconds: Mapping[str, float]) -> None:
        """Add parts that were timed elsewhere; the next one starts now."""
        self.seconds |= seconds
        self._last = perf_counter()

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())


@contextmanager
def without_collection() -> Iterator[None]:
    """Import without garbage collection, which takes a tenth of the time and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def leave_to_system() -> None:
    """At the end of the process: else Python collects all of torch first, for half a second."""
    if "triton" not in sys.modules:  # its bindings would report leaks
        gc.freeze()
