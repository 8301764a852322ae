"""Hides messages that libraries mean for developers: users can do nothing about them."""

import faulthandler
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import hide_library_warnings


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
