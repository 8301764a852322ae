"""The options that say where and how to compute, for every command that estimates."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from . import options

_OPTIONS = {
    "device": (options.Device, "auto"),
    "precision": (options.Precision, "auto"),
    "backend": (options.Backend, "auto"),
    "memory_limit": (options.MemoryLimit, None),
}


def estimates(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that declares `**how` these options; `how` holds them as `load` takes them."""
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in _OPTIONS.items()
    ]
    *own, _ = signature(command).parameters.values()
    place = [parameter.name for parameter in own].index("quiet")  # in the help, not after --json
    shown = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]
    shown[place:place] = more

    @wraps(command)
    def with_options(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in _OPTIONS}
        command(**given, **options.compute(**chosen))

    with_options.__signature__ = signature(command).replace(parameters=shown)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return with_options
