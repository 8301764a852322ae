"""Turns parameters in messages of the library into options of the command line."""

import re

_OPTIONS = {"changes": "set", "initial": "init", "num_samples": "overfit", "roots": "data"}
"""Parameters that have another name on the command line."""
_PARAMETER = re.compile(r"`([a-z_]\w*)(?:=([^`]*))?`")


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
