"""The formats that are read: small files of each, how they are read, and what is right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ..mutations import mutated


def _anything(data: bytes, result: Any) -> str:
    return ""


@dataclass(frozen=True)
class Format:
    """A format, for the campaign `files`."""

    suffix: str
    seeds: Callable[[], list[bytes]]
    """Small files that can be read."""
    read: Callable[[Path], Any]
    """Reads a file as the package does; returns arrays, alone or in a list or a dict."""
    structured: Callable[[Random, Sequence[bytes]], bytes] | None = None
    """Returns a file whose damage is deeper: sums and sizes around it are right."""
    problem: Callable[[bytes, Any], str] = _anything
    """What is wrong with a result; empty if nothing is."""
    count: int = 10_000
    shortens: bool = False
    """Whether a truncated file may be read as far as it goes, as a video is."""

    def mutated(self, dice: Random, seeds: Sequence[bytes]) -> bytes:
        """Return a damaged file."""
        if self.structured is None or dice.random() < 0.4:
            return mutated(dice.choice(seeds), dice, seeds)
        data = self.structured(dice, seeds)
        return mutated(data, dice, seeds) if dice.random() < 0.2 else data
