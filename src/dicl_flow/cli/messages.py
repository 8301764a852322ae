"""What users read: errors and warnings in one line; messages of libraries are hidden."""

import faulthandler
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import SlowWarning, hide_library_warnings

_OPTIONS = {"changes": "set", "initial": "init", "num_samples": "overfit", "roots": "data"}
"""Parameters that have another name on the command line."""
_PARAMETER = re.compile(r"`([a-z_]\w*)(?:=([^`]*))?`")


def describe(error: Exception) -> str:
    """Return one line: our message with options for parameters, or the system's and its file."""
    if isinstance(error, OSError) and error.strerror:
        name = error.filename2 or error.filename  # of two: the new name of a file
        return f"{os.fsdecode(name)}: {error.strerror}" if name else error.strerror
    return as_flags(" ".join(str(error).split()))


def as_flags(message: str) -> str:
    """Write `device='cpu'` as --device cpu, `resume=True` as --resume, `size` as --size.

    A list or a table becomes one value: `roots={'pairs': PATH}` is --data pairs=PATH.
    """
    return _PARAMETER.sub(_flag, message)


def _flag(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    option = "--" + _OPTIONS.get(name, name).replace("_", "-")
    if value in (None, "True"):
        return option
    return f"{option} {value.strip('[]{}').replace(': ', '=')}".replace("'", "")


def print_warning(
    message: Warning | str, category: type[Warning], *place: Any, **options: Any
) -> None:
    """Print a warning of ours as one line to stderr, any other one as Python does."""
    if issubclass(category, SlowWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *place[:2]))


@contextmanager
def hidden_messages() -> Iterator[None]:
    """Hide the warnings of libraries, in Python and in native code, while a command runs.

    `python -W default` or PYTHONWARNINGS=default brings all of them back.
    """
    if sys.warnoptions:
        yield
        return
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings(), _native_messages_hidden():
            hide_library_warnings()
            yield
    finally:
        logging.disable(before)


@contextmanager
def _native_messages_hidden() -> Iterator[None]:
    """Give `sys.stderr` a separate descriptor; what libpng, libjpeg or FFmpeg write is lost.

    They write to descriptor 2, whatever Python does. Loader processes inherit it. A crash is
    still reported: Python's handler of fatal signals writes to the new descriptor.
    """
    if not _is_descriptor_2(sys.stderr):  # it is redirected already, as in a test
        yield
        return
    sys.stderr.flush()
    usual, kept = sys.stderr, os.dup(2)
    sys.stderr = os.fdopen(kept, "w", 1, usual.encoding, usual.errors)
    tell_crashes = not faulthandler.is_enabled()
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - not a path on every system
        os.dup2(nowhere.fileno(), 2)
    if tell_crashes:
        faulthandler.enable(sys.stderr)
    try:
        yield
    finally:
        if tell_crashes:
            faulthandler.disable()
        sys.stderr.flush()
        os.dup2(kept, 2)
        sys.stderr.close()
        sys.stderr = usual


def _is_descriptor_2(stream: object) -> bool:
    try:
        return bool(stream.fileno() == 2)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):  # a stream without one, or closed
        return False
