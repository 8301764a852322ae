"""Checks that tensors are those of a network: their names, shapes, types and values."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_TYPES = dict.fromkeys(_FLOATS, _FLOATS) | {"int64": ("int64", "int32")}
"""By the type that the network has: those that are converted to it."""


def check_finite(tensors: "Mapping[str, Tensor]") -> None:
    """Refuse NaN and infinite values."""
    floats = (key for key, tensor in tensors.items() if _type(tensor) in _FLOATS)
    wrong = [key for key in floats if not bool(tensors[key].isfinite().all())]
    if wrong:
        raise InputError(f"NaN or infinite values in {_some(wrong)}")


def check_keys(tensors: "Mapping[str, Tensor]", model: "nn.Module") -> None:
    """Refuse tensors other than those of the model; the error names missing and unknown ones."""
    expected = model.state_dict()
    missing = sorted(expected.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - expected.keys())
    misfit = [
        f"{key} {tuple(tensors[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & tensors.keys())
        if tensors[key].shape != expected[key].shape
    ]
    others = [
        f"{key} {_type(tensors[key])}"
        for key in sorted(expected.keys() & tensors.keys())
        if _type(tensors[key]) not in _TYPES[_type(expected[key])]
    ]
    problems = {"missing": missing, "unknown": unknown, "wrong shape": misfit, "wrong type": others}
    if any(problems.values()):
        parts = [f"{kind}: {_some(keys)}" for kind, keys in problems.items() if keys]
        raise InputError(f"the weights do not fit the network; {'; '.join(parts)}")


def _type(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _some(keys: list[str], limit: int = 5) -> str:
    rest = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join(keys[:limit]) + rest
