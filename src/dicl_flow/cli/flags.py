"""The one place where a parameter of the library becomes an option of the command line."""

import re

_OPTIONS = {"changes": "set", "initial": "init", "num_samples": "overfit", "roots": "data"}
"""Parameters that the command line has another word for."""
_PARAMETER = re.compile(r"`([a-z_]\w*)(?:=([^`]*))?`")


def as_flags(message: str) -> str:
    """Say `device='cpu'` as --device cpu, `resume=True` as --resume, `size` as --size.

    A list or a table becomes one value: `roots={'pairs': PATH}` is --data pairs=PATH.
    """
    return _PARAMETER.sub(_flag, message)


def _flag(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    option = "--" + _OPTIONS.get(name, name).replace("_", "-")
    if value in (None, "True"):
        return option
    return f"{option} {value.strip('[]{}').replace(': ', '=')}".replace("'", "")
