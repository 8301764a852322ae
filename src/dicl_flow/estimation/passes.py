"""One pass over a pair, or several: each at its own scale, from the flow of the previous one."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor

from ..models import InitialFlow
from .engines import Engine
from .feeding import Feeding, Size, size_of
from .found import Found, View

Look: TypeAlias = Callable[[int, Sequence[InitialFlow]], list[View]]
"""The number of a pass, and the initial flow of each direction (none: no motion) -> its views."""


class Passes:
    """One pass for each of the `feedings`, each starting from the flow of the previous one.

    A pass with an initial flow runs the levels from the stride `start` on. Frames are
    (B, 3, H, W) in [0, 1].
    """

    def __init__(self, engine: Engine, feedings: Sequence[Feeding], start: int) -> None:
        self.engine, self.feedings, self.start = engine, feedings, start

    def one_way(self, image1: Tensor, image2: Tensor, *initial: Tensor) -> Found:
        """From frame 1 to frame 2; `initial` is a flow (B, 2, H, W) to start from."""

        def look(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            fitted1, fitted2 = self._fit(number, image1, image2)
            return [View(self.engine.match_images(fitted1, fitted2, *begin), fitted1, fitted2)]

        (found,) = self._run(look, size_of(image1), initial)
        return found

    def both_ways(self, image1: Tensor, image2: Tensor, *initial: Tensor) -> list[Found]:
        """From frame 1 to frame 2, and from frame 2 to frame 1."""

        def look(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            fitted1, fitted2 = self._fit(number, image1, image2)
            forward, backward = self.engine.match_both_ways(fitted1, fitted2, *begin)
            return [View(forward, fitted1, fitted2), View(backward, fitted2, fitted1)]

        return self._run(look, size_of(image1), initial)

    def prepare(self, image: Tensor) -> list[Tensor]:
        """For each pass: the frame as the network sees it, and its features."""
        parts: list[Tensor] = []
        for number in range(len(self.feedings)):
            fitted = self._fit(number, image)[0].contiguous()
            parts += [fitted, *self.engine.features(fitted)]
        return parts

    def match(self, first: list[Tensor], second: list[Tensor], size: Size) -> Found:
        """From one prepared frame of `size` to another."""
        count = len(first) // len(self.feedings)  # parts of a pass

        def look(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            mine = slice(number * count, (number + 1) * count)
            (fitted1, *pyramid1), (fitted2, *pyramid2) = first[mine], second[mine]
            levels = self.engine.match(pyramid1, pyramid2, fitted1, *begin)
            return [View(levels, fitted1, fitted2)]

        (found,) = self._run(look, size)
        return found

    def _fit(self, number: int, *images: Tensor) -> list[Tensor]:
        return self.engine.fit(self.feedings[number], *images)

    def _run(self, look: Look, size: Size, initial: Sequence[Tensor] = ()) -> list[Found]:
        """Look once in each pass; with an initial flow, only the last pass is left to do."""
        found, upsample = list[Found](), self.engine.network.upsample
        for number in range(len(self.feedings) - 1 if initial else 0, len(self.feedings)):
            feeding = self.feedings[number]
            fitted = (feeding.fit_flow(flow) for flow in initial)
            views = look(number, [InitialFlow(flow, self.start) for flow in fitted])
            found = [Found(view, feeding, size, upsample) for view in views]
            if number + 1 < len(self.feedings):
                initial = [one.flow for one in found]
        return found
