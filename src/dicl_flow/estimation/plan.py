"""Which passes frames get: by quality and, at full size, by how large they are."""

from math import prod

from ..config import BEST, Quality
from .engines import Engine
from .feeding import Feeding, Size
from .passes import Passes


class Plan:
    """The passes over frames of any size.

    At full size, a frame that the weights would scale down gets two passes: one that is scaled
    down, to find large motion, and one at full size that starts from its flow.
    """

    def __init__(self, engine: Engine, quality: Quality, *, full_size: bool) -> None:
        weights = engine.network.config
        scaled_down = Feeding.of(weights)
        fed = weights.at_full_size() if full_size else weights
        feedings = [Feeding.of(fed, scale) for scale in quality.scales]
        self.last = feedings[-1]
        self.largest = max(feedings, key=lambda feeding: feeding.scale)
        """The feeding of the pass that needs the most memory."""
        self.first = Passes(engine, [scaled_down], BEST.start)
        """The first pass over large frames."""
        self.large = Passes(engine, [scaled_down, self.last], BEST.start)
        self._others = Passes(engine, feedings, quality.start)
        possible = weights.begins_from_flow and weights.strides[-1] <= BEST.start
        self._limit = weights.max_pixels if full_size and possible else 0

    def is_large(self, size: Size) -> bool:
        """Whether frames of `size` get a first pass that is scaled down."""
        return bool(self._limit) and prod(size) > self._limit

    def passes(self, size: Size) -> Passes:
        """All passes over frames of `size`."""
        return self.large if self.is_large(size) else self._others
