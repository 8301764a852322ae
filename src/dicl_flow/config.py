"""Config is data: frozen, checked when it is made, read strictly from TOML or JSON."""

import dataclasses
import json
import tomllib
import types
import typing
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

from .errors import InputError, unknown_name

HOSTS = ("dicl",)
MATCHERS = ("dot", "cosine", "mlp", "reduced", "dicl")
PADDINGS = ("replicate", "white")
STRIDES = (64, 32, 16, 8, 4, 2)  # what the feature pyramid can deliver

ConfigType = TypeVar("ConfigType")


@dataclass(frozen=True)
class LevelConfig:
    """One pyramid level: where it sits, how far it looks, how its context net is built."""

    stride: int
    """Input pixels per pixel of this level."""
    radius: int = 3
    """Hypotheses reach from -radius to radius, in pixels of this level, on both axes."""
    context: tuple[tuple[int, int], ...] = ()
    """(width, dilation) of each hidden layer of the context net."""

    def __post_init__(self) -> None:
        if self.stride not in STRIDES:
            raise InputError(f"level stride must be one of {STRIDES}, got {self.stride}")
        if self.radius < 1:
            raise InputError(f"level radius must be at least 1, got {self.radius}")
        if any(width < 1 or dilation < 1 for width, dilation in self.context):
            raise InputError(
                f"context layers are (width, dilation) pairs of at least 1, got {self.context}"
            )

    @property
    def num_hypotheses(self) -> int:
        """How many displacements are compared at each pixel."""
        return (2 * self.radius + 1) ** 2

    @property
    def context_scale(self) -> float:
        """What the context net's output is multiplied by before it is added to the flow."""
        return 2 / self.stride


_DEEP_CONTEXT = ((64, 1), (128, 2), (128, 4), (96, 8), (64, 16), (32, 1))

PAPER_LEVELS = (
    LevelConfig(64, context=((64, 1), (64, 2), (32, 1))),
    LevelConfig(32, context=((64, 1), (128, 2), (64, 4), (32, 1))),
    LevelConfig(16, context=((64, 1), (128, 2), (128, 4), (64, 8), (32, 1))),
    LevelConfig(8, context=_DEEP_CONTEXT),
    LevelConfig(4, context=_DEEP_CONTEXT),
)


@dataclass(frozen=True)
class ModelConfig:
    """A network: the default is the paper's."""

    host: str = "dicl"
    """The architecture around the matcher."""
    matcher: str | None = None
    """How two feature vectors are compared; None: the host's own way."""
    projection: bool = True
    """Reweight the scores with a displacement-aware projection (DAP)."""
    context: bool = True
    """Refine the flow of each level with a context net."""
    feature_channels: int = 32
    """Width of the features that are compared."""
    padding: str = "replicate"
    """How an image is filled up to a multiple of `pad_multiple`: its border repeated, or white."""
    levels: tuple[LevelConfig, ...] = PAPER_LEVELS
    """Coarsest first; each has half the stride of the one before."""

    def __post_init__(self) -> None:
        if self.host not in HOSTS:
            raise unknown_name("host", self.host, HOSTS)
        if self.matcher is not None and self.matcher not in MATCHERS:
            raise unknown_name("matcher", self.matcher, MATCHERS)
        if self.padding not in PADDINGS:
            raise unknown_name("padding", self.padding, PADDINGS)
        if self.feature_channels < 1:
            raise InputError(f"feature_channels must be at least 1, got {self.feature_channels}")
        if not self.levels:
            raise InputError("levels is empty; a network needs at least one level")
        if any(coarse != 2 * fine for coarse, fine in pairwise(self.strides)):
            raise InputError(
                f"levels go from coarse to fine, halving the stride each time; got {self.strides}"
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each level, coarsest first."""
        return tuple(level.stride for level in self.levels)

    @property
    def reach(self) -> tuple[int, ...]:
        """Largest displacement, in input pixels, that each level can still represent."""
        return tuple(accumulate(level.radius * level.stride for level in self.levels))

    @property
    def pad_multiple(self) -> int:
        """Image sides must be multiples of this: the stride of the feature net's bottleneck."""
        return 2 * self.levels[0].stride

    def to_json(self) -> str:
        """One line of JSON that `ModelConfig.from_json` reads back to an equal config."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ModelConfig":
        """Read what `to_json` wrote; anything unknown or ill-typed is refused."""
        try:
            return structure(cls, json.loads(text))
        except json.JSONDecodeError as error:
            raise InputError(f"the model config is not valid JSON: {error}") from None


def read_toml(path: str | Path, config_type: type[ConfigType]) -> ConfigType:
    """Read a TOML file into `config_type`; anything unknown or ill-typed is refused."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    try:
        return structure(config_type, data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def structure(expected: Any, value: Any, where: str = "") -> Any:
    """Turn plain data (of JSON or TOML) into `expected`, naming the key of the first misfit.

    Knows what configs are made of: dataclasses, tuples, optionals, and the scalars
    bool, int, float, str. An int may stand for a float; nothing else is converted.
    """
    if dataclasses.is_dataclass(expected):
        return _structure_dataclass(expected, value, where)
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is types.UnionType:
        if value is None and type(None) in arguments:
            return None
        return structure(next(a for a in arguments if a is not type(None)), value, where)
    if origin is tuple:
        return _structure_tuple(arguments, value, where)
    if expected is float and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise InputError(
            f"{where or 'value'} must be of type {expected.__name__}, got {value!r} "
            f"({type(value).__name__})"
        )
    return value


def _structure_dataclass(expected: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{where or 'config'} must be a table, got {value!r}")
    hints = typing.get_type_hints(expected)
    fields = {field.name: field for field in dataclasses.fields(expected)}
    for key in value:
        if key not in fields:
            raise unknown_name("key", f"{where}.{key}" if where else key, fields)
    for name, field in fields.items():
        no_default = field.default is field.default_factory is dataclasses.MISSING
        if name not in value and no_default:
            raise InputError(f"{where or 'config'} lacks the key {name!r}")
    prefix = f"{where}." if where else ""
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
