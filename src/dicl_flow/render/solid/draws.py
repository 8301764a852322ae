"""Random draws of one world, in plain Python: the same on every machine and device."""

import math
from collections.abc import Mapping, Sequence
from random import Random

_SHARES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


class Draws(Random):
    """A generator with the distributions of the renderer."""

    def log_uniform(self, low: float, high: float) -> float:
        """Log-uniform in [low, high)."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def mostly_small(self, extent: float) -> float:
        """In [-extent, extent], half of the draws within an eighth of it."""
        return extent * self.uniform(-1, 1) ** 3

    def happens(self, share: float) -> bool:
        """True with the probability `share`."""
        return self.random() < share

    def side(self) -> float:
        """-1 or 1."""
        return 1.0 if self.random() < 0.5 else -1.0

    def length(self, quantiles: Sequence[float]) -> float:
        """A length with the given 50, 75, 90, 95, 99 and 100 % quantiles, linear in between."""
        share, ends = self.random(), (0.0, *quantiles)
        step = sum(share >= limit for limit in _SHARES[1:-1])
        low, high = _SHARES[step], _SHARES[step + 1]
        return ends[step] + (ends[step + 1] - ends[step]) * (share - low) / (high - low)

    def pick(self, weights: Mapping[str, float], other: str) -> str:
        """One of the names, each with its probability; `other` with what is left of 1."""
        left = self.random()
        for name, weight in weights.items():
            left -= weight
            if left < 0:
                return name
        return other

    def vector(self, deviation: float) -> tuple[float, float, float]:
        """Three normal draws."""
        return self.gauss(0, deviation), self.gauss(0, deviation), self.gauss(0, deviation)

    def sizes(self, low: float, high: float) -> tuple[float, float, float]:
        """Three uniform draws."""
        return self.uniform(low, high), self.uniform(low, high), self.uniform(low, high)
