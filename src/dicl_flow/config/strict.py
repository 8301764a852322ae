"""Reads plain data strictly into frozen configs, and writes configs as TOML."""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from ..errors import InputError, unknown_name


def read_toml_table(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as plain data."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also of thousands of digits or brackets
        raise InputError(f"{path} is not valid TOML: {error}") from None


class JsonConfig:
    """A dataclass that is kept as one line of JSON."""

    _CALLED: ClassVar[str]  # in errors

    def to_json(self) -> str:
        """Return one line of JSON that `from_json` reads back as an equal config."""
        return json.dumps(dataclasses.asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; unknown keys and wrong types are refused."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{cls._CALLED} is not valid JSON: {error}") from None
        return structure(cls, value)


def to_toml(config: Any) -> str:
    """Return TOML that `structure` reads back; a hash of this text names folders of ablations."""
    values = dataclasses.asdict(config)
    tables = {key: values.pop(key) for key in list(values) if isinstance(values[key], dict)}
    lines = []
    for name, table in {"": values, **tables}.items():
        lines += ["", f"[{name}]"] if name else []
        lines += [f"{key} = {_literal(v)}" for key, v in table.items() if v is not None]
    return "\n".join(lines) + "\n"


def differences(toml1: str, toml2: str) -> list[str]:
    """Return the dotted keys in which two configs, as TOML, differ."""
    flat1, flat2 = _flatten(tomllib.loads(toml1)), _flatten(tomllib.loads(toml2))
    return sorted(key for key in flat1.keys() | flat2.keys() if flat1.get(key) != flat2.get(key))


def structure(expected: Any, value: Any, where: str = "") -> Any:
    """Turn plain data (from JSON or TOML) into `expected`; an error names the first wrong key.

    Supports dataclasses, tuples, optionals, bool, int, float and str. An int is accepted for a
    float; nothing else is converted.
    """
    if dataclasses.is_dataclass(expected):
        return _structure_dataclass(expected, value, where)
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is types.UnionType:
        chosen = next(a for a in arguments if a is not type(None))
        return None if value is None else structure(chosen, value, where)
    if origin is tuple:
        return _structure_tuple(arguments, value, where)
    if expected is float and type(value) is int and abs(value) < 2**1000:  # others do not fit
        return float(value)
    if type(value) is not expected:
        raise InputError(
            f"{where or 'value'} must be of type {expected.__name__}, got {value!r} "
            f"({type(value).__name__})"
        )
    return value


def check_ranges(config: Any, ranges: Mapping[str, tuple[float, float] | None]) -> None:
    """Refuse values, or entries of tuples, outside [0, 1], or `ranges[key]`; None: any value."""
    for field in dataclasses.fields(config):
        values, limits = getattr(config, field.name), ranges.get(field.name, (0, 1))
        for value in values if isinstance(values, tuple) else (values,):
            if limits is not None and not limits[0] <= value <= limits[1]:
                low, high = limits
                raise InputError(f"{field.name} must be in [{low:g}, {high:g}], got {value:g}")


def _structure_dataclass(expected: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{where or 'config'} must be a table, got {value!r}")
    hints = typing.get_type_hints(expected)
    fields = {field.name: field for field in dataclasses.fields(expected)}
    prefix = f"{where}." if where else ""
    for key in value:
        if key not in fields:
            raise unknown_name("key", prefix + key, fields)
    for name, field in fields.items():
        no_default = field.default is field.default_factory is dataclasses.MISSING
        if name not in value and no_default:
            raise InputError(f"{where or 'config'} lacks the key {name!r}")
    return expected(**{key: structure(hints[key], v, prefix + key) for key, v in value.items()})


def _structure_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} must be a list, got {value!r}")
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(value)
    if len(value) != len(arguments):
        raise InputError(f"{where} must have {len(arguments)} entries, got {value!r}")
    return tuple(
        structure(argument, entry, f"{where}[{index}]")
        for index, (argument, entry) in enumerate(zip(arguments, value, strict=True))
    )


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, dict)
        flat |= _flatten(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return flat
