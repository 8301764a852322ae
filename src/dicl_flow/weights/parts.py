"""Parts of a network that several weights files share, and the file that holds them."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

BASE_KEY = "dicl_flow.base"  # in the safetensors metadata
_KEYS = {
    "features": r"\bfeatures\.",
    "trunk": r"\bfeatures\.(?!outputs\.).",  # the feature net without its last layer at each level
    "context": r"\bcontext\.",
}


def in_parts(key: str, parts: Iterable[str]) -> bool:
    """Whether a state-dict key belongs to one of these parts: "features", "trunk", "context"."""
    return any(re.search(_KEYS[part], key) for part in parts)


class Base(NamedTuple):
    """Packaged weights that a file completes: it leaves out what it shares with them."""

    name: str
    """A packaged name."""
    sha256: str
    parts: tuple[str, ...]

    def shared(self, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """Return the tensors of the parts that are shared."""
        return {key: tensor for key, tensor in tensors.items() if in_parts(key, self.parts)}

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "Base":
        """Read what `to_json` wrote."""
        try:
            values = json.loads(text)
            base = cls(values["name"], values["sha256"], tuple(values["parts"]))
            in_parts("", base.parts)  # refuses unknown ones
            return base
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError("the entry that names the weights to complete is damaged") from None
