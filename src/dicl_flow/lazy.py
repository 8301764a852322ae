"""Imports the names of a package when they are first used.

Torch takes seconds to import; an error about a mistyped file name should not wait for it.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package; `names` has the names of each module: "one two"."""
    homes = {name: home for home, of_home in names.items() for name in of_home.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(import_module(package), name, value)
        return value

    return get
