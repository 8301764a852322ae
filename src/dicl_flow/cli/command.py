"""Commands that explain wrong arguments, and whose help shows no types of Python."""

import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from ..errors import InputError

_INSTEAD = {
    "check": "give the folder",
    "bench": "give the folder",
    "flow": "for a sequence of frames there is dicl-flow video 'frames/*.png'",
    "render": "give the folder",
    "submit": "give the folder",
}
"""By command: what to do if the shell has expanded a pattern to many files."""
_TYPES = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH"}
"""How the help shows the types of Python; flags and arguments need no type."""
_BARE = {"--ray": ("local", r"local|auto|\S+:\d+")}
"""By option: its value if none is given, and what its values look like."""
_WRITES = {("eval", "--json"): "-o"}
"""By command and flag: the option that writes the file one could expect after the flag."""


class Command(TyperCommand):
    """A command that explains surplus arguments, and options where a value is missing."""

    allow_extra_args = True  # the parser's own refusal would say less than ours

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options, with types in plain words."""
        return [_in_words(parameter, ctx) for parameter in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments of the command."""
        args = _with_values(args)
        words, options = list(args), [p for p in self.get_params(ctx) if _is_option(p)]
        _refuse_missing_values(words, options)
        surplus = super().parse_args(ctx, args)
        if surplus and not ctx.resilient_parsing:
            flags = {name for option in options if option.is_flag for name in option.opts}
            before = ["", *words][words.index(surplus[0])]
            if before in flags:
                raise _flag_with_value(ctx.info_name, before, surplus[0])
            raise _too_many(ctx.info_name, self.get_params(ctx), surplus)
        return surplus


class Group(TyperGroup):
    """Commands under one name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, with types in plain words."""
        return [_in_words(parameter, ctx) for parameter in super().get_params(ctx)]


def _in_words(parameter: Any, ctx: Any) -> Any:
    if not _is_option(parameter):
        parameter.metavar = parameter.metavar or parameter.name.upper()
        parameter.display_type = lambda ctx: ""
    elif parameter.is_flag:
        parameter.metavar = ""
    elif parameter.metavar is None and hasattr(parameter, "display_type"):  # typer 0.29
        kind = parameter.display_type(ctx).strip("<>").removesuffix(" range")
        parameter.metavar = _TYPES.get(kind.removeprefix("list[").removesuffix("]").lower(), kind)
    return parameter


def _with_values(words: list[str]) -> list[str]:
    """Fill in the values of options that may stand alone."""
    filled = []
    for word, follower in zip_longest(words, words[1:], fillvalue=""):
        filled.append(word)
        value, values = _BARE.get(word, ("", ""))
        if value and not re.fullmatch(values, follower):
            filled.append(value)
    return filled


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _refuse_missing_values(words: list[str], options: list[Any]) -> None:
    """Refuse `-o --quiet`, which would write a file called --quiet."""
    names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    values = {name: o.nargs for o in options if not o.is_flag for name in o.opts}
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        for follower in words[place + 1 : min(place + 1 + values.get(word, 0), end)]:
            if follower in names:
                raise InputError(f"{word} needs a value, but the option {follower} follows")


def _flag_with_value(command: str, flag: str, value: str) -> InputError:
    elsewhere = _WRITES.get((command, flag))
    hint = f"; to write a file: {elsewhere} {value}" if elsewhere else ""
    return InputError(f"{flag} takes no value, but {value!r} follows{hint}")


def _too_many(command: str, parameters: list[Any], surplus: list[str]) -> InputError:
    taken = [p.metavar for p in parameters if not _is_option(p)]
    some = ", ".join(surplus[:3]) + (", …" if len(surplus) > 3 else "")
    message = f"{command} takes {' '.join(taken) or 'options only'}; unexpected: {some}"
    if all(Path(word).exists() for word in surplus):
        advice = _INSTEAD.get(command, "give the files one by one")
        message += f". If the shell expanded a pattern such as *.png: {advice}"
    return InputError(message)
