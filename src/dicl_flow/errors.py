"""What ends a run early: `InputError` and its helpers, a signal to stop; and our one warning."""

import os
import signal
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from threading import Thread
from time import monotonic
from types import FrameType
from typing import Any

_LONGEST = 1000  # characters of a message
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], " ")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ECHO = 0.5  # seconds in which two SIGTERM count as one


class InputError(ValueError):
    """Something that was given cannot be used; the message says what to give instead.

    The command line prints the message (and that of an `OSError`) and exits with code 2;
    any other exception is a bug in this package and keeps its traceback.

    A message names parameters in backticks, as in Python: "use `device='cpu'`". Only the command
    line turns that into an option: "use --device cpu" (cli/command.py). A message is one line;
    what it quotes from a file may be long: then its middle is left out. It has no characters that
    control a terminal.
    """

    def __init__(self, message: str) -> None:
        text = " ".join(str(message).splitlines()).translate(_CONTROL)
        half = _LONGEST // 2
        whole = len(text) <= _LONGEST
        super().__init__(text if whole else f"{text[:half]} … {text[-half:]}")


class SlowWarning(UserWarning):
    """What was asked for is done, but takes many times longer than necessary."""


def unknown_name(
    kind: str, name: object, known: Iterable[str], meant: Mapping[str, str] | None = None
) -> InputError:
    """Return the error for a mistyped name, with the nearest one that exists.

    `meant` has names that others use: {"gpu": "cuda"}.
    """
    names = list(known)
    by_lower = {known_name.lower(): known_name for known_name in names} | dict(meant or {})
    nearest = get_close_matches(str(name).lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]!r}? " if nearest else ""
    return InputError(f"unknown {kind} {name!r}; {hint}known: {', '.join(names) or 'none'}")


def check_name(kind: str, name: object, known: Collection[str]) -> None:
    """Refuse a name that is not among the known ones."""
    if name not in known:
        raise unknown_name(kind, name, known)


@contextmanager
def refusing(start: str, *kinds: type[Exception]) -> Iterator[None]:
    """Begin errors of these kinds with `start`; an `InputError` that is not one of them passes."""
    try:
        yield
    except kinds as error:
        if isinstance(error, InputError) and InputError not in kinds:
            raise
        raise InputError(f"{start}: {error}") from None


def import_extra(module: str, need: str, extra: str) -> Any:
    """Import a library of an extra; without it, the error is `need` and how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{need}: pip install 'dicl-flow[{extra}]'") from None


def counted(number: int, noun: str) -> str:
    """Return a number of things: "1 pair", "2,000 pairs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def setting_in_words(value: object) -> str:
    """Return a setting for people: not given, on, off, 0.5, or "a, b" for a list."""
    if value is None or value == "":
        return "not given"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def hide_library_warnings() -> None:
    """Hide the warnings of libraries, which are meant for developers, not for users.

    `python -W default` or PYTHONWARNINGS=default shows them.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", SlowWarning)  # ours are meant for users


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

    def __exit__(self, *error: object) -> None:
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
