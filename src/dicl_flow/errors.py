"""The error that a user can fix, `InputError`, its helpers, and our one warning."""

import sys
import warnings
from collections.abc import Collection, Iterable
from difflib import get_close_matches

_LONGEST = 1000  # characters of a message


class InputError(ValueError):
    """Something that was given cannot be used; the message says what to give instead.

    The command line prints the message (and that of an `OSError`) and exits with code 2;
    any other exception is a bug in this package and keeps its traceback.

    A message names parameters in backticks, as in Python: "use `device='cpu'`". Only the command
    line turns that into an option: "use --device cpu" (cli/messages.py). A message is one line;
    what it quotes from a file may be long: then its middle is left out.
    """

    def __init__(self, message: str) -> None:
        text, half = " ".join(str(message).splitlines()), _LONGEST // 2
        whole = len(text) <= _LONGEST
        super().__init__(text if whole else f"{text[:half]} … {text[-half:]}")


class SlowWarning(UserWarning):
    """What was asked for is done, but takes many times longer than necessary."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Return the error for a mistyped name, with the nearest one that exists."""
    names = list(known)
    by_lower = {known_name.lower(): known_name for known_name in names}
    nearest = get_close_matches(str(name).lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]!r}? " if nearest else ""
    return InputError(f"unknown {kind} {name!r}; {hint}known: {', '.join(names) or 'none'}")


def check_name(kind: str, name: object, known: Collection[str]) -> None:
    """Refuse a name that is not among the known ones."""
    if name not in known:
        raise unknown_name(kind, name, known)


def hide_library_warnings() -> None:
    """Hide the warnings of libraries, which are meant for developers, not for users.

    `python -W default` or PYTHONWARNINGS=default shows them.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", SlowWarning)  # ours are meant for users
