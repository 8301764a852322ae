"""One pass over a pair, or several: each at its own scale, from the flow of the one before."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

from torch import Tensor

from ..config import Quality
from ..models import FlowNetwork, InitialFlow, LevelFlow
from .feeding import Feeding, Size, size_of
from .inputs import normalize


class View(NamedTuple):
    """What a pass found in one direction, and the frames that it saw."""

    levels: list[LevelFlow]
    image1: Tensor
    """(B, 3, H, W) in [-1, 1]: the frame that the flow belongs to."""
    image2: Tensor


class Found(NamedTuple):
    """The last pass in one direction."""

    view: View
    flow: Tensor
    """(B, 2, H, W) at the size of the frames, in their pixels."""


Look: TypeAlias = Callable[[int, Sequence[InitialFlow]], list[View]]
"""The number of a pass, and what each direction begins from (nothing: no motion) -> its views."""


class Passes:
    """What a network makes of pairs at a quality: one pass for each of its scales.

    Each but the first begins from the flow of the one before. Frames are (B, 3, H, W) in
    [0, 1]; `arithmetic` is the context in which the network computes.
    """

    def __init__(
        self,
        network: FlowNetwork,
        quality: Quality,
        arithmetic: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.network, self.quality, self.arithmetic = network, quality, arithmetic

    @property
    def feedings(self) -> list[Feeding]:
        """How frames reach the network in each pass."""
        return [Feeding(self.network.config, scale) for scale in self.quality.scales]

    def one_way(self, image1: Tensor, image2: Tensor, *initial: Tensor) -> Found:
        """From frame 1 to frame 2; `initial` is a flow (B, 2, H, W) to begin from."""

        def look(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            fitted1, fitted2 = self._fit(number, image1, image2)
            with self.arithmetic():
                return [View(self.network(fitted1, fitted2, *begin), fitted1, fitted2)]

        (found,) = self._run(look, size_of(image1), initial)
        return found

    def both_ways(self, image1: Tensor, image2: Tensor) -> list[Found]:
        """From frame 1 to frame 2, and back."""

        def look(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            fitted1, fitted2 = self._fit(number, image1, image2)
            with self.arithmetic():
                there, back = self.network.both_ways(fitted1, fitted2, *begin)
            return [View(there, fitted1, fitted2), View(back, fitted2, fitted1)]

        return self._run(look, size_of(image1))

    def prepare(self, image: Tensor) -> list[Tensor]:
        """Of each pass: the frame as the network sees it, and its features."""
        parts: list[Tensor] = []
        for number in range(len(self.quality.scales)):
            fitted = self._fit(number, image)[0].contiguous()
            with self.arithmetic():
                parts += [fitted, *self.network.features(fitted)]
        return parts

    def match(self, first: list[Tensor], second: list[Tensor], size: Size) -> Found:
        """Two prepared frames that were of `size`, one way."""
        count = len(first) // len(self.quality.scales)  # parts of a pass

        def look(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            mine = slice(number * count, (number + 1) * count)
            (fitted1, *pyramid1), (fitted2, *pyramid2) = first[mine], second[mine]
            with self.arithmetic():
                levels = self.network.flow_from_features(pyramid1, pyramid2, fitted1, *begin)
            return [View(levels, fitted1, fitted2)]

        (found,) = self._run(look, size)
        return found

    def _fit(self, number: int, *images: Tensor) -> list[Tensor]:
        return [self.feedings[number].fit(normalize(image)) for image in images]

    def _run(self, look: Look, size: Size, initial: Sequence[Tensor] = ()) -> list[Found]:
        """Look once a pass; where there is an initial flow, only the last pass is left to do."""
        feedings, flows = self.feedings, list(initial)
        views: list[View] = []
        for number in range(len(feedings) - 1 if flows else 0, len(feedings)):
            feeding = feedings[number]
            fitted = (feeding.fit_flow(flow) for flow in flows)
            views = look(number, [InitialFlow(flow, self.quality.start) for flow in fitted])
            flows = [feeding.unfit_flow(self._finest(view), size) for view in views]
        return [Found(view, flow) for view, flow in zip(views, flows, strict=True)]

    def _finest(self, view: View) -> Tensor:
        """The flow of the last level, at the size of what the network sees."""
        return self.network.upsample(view.levels[-1].refined, size_of(view.image1))
