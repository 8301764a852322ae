"""What passes over a pair found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..models import LevelFlow
from .feeding import Feeding, Size, size_of


class View(NamedTuple):
    """What a pass found in one direction, and the frames that it saw."""

    levels: list[LevelFlow]
    image1: Tensor
    """(B, 3, H, W) in [-1, 1]: the frame to which the flow belongs."""
    image2: Tensor


@dataclass(frozen=True)
class Found:
    """The last pass in one direction."""

    view: View
    feeding: Feeding
    """How the frames were fed to it."""
    size: Size
    """(height, width) of the frames."""
    upsample: Callable[[Tensor, Size], Tensor]
    """How the network enlarges the flow of a level."""

    @property
    def flow(self) -> Tensor:
        """(B, 2, H, W) at the size of the frames, in their pixels."""
        seen = self.upsample(self.view.levels[-1].refined, size_of(self.view.image1))
        return self.feeding.unfit_flow(seen, self.size)

    def images(self) -> list[Tensor]:
        """Both frames as the network saw them, without their padding: it is no texture."""
        _, *images = self.view
        return [self.feeding.without_padding(image, self.size) for image in images]
