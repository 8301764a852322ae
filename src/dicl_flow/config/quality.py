"""The qualities: how many passes an estimate takes, and at which scales."""

from dataclasses import dataclass

from ..errors import InputError, unknown_name
from .level import STRIDES
from .model import ModelConfig

NORMAL = "normal"


@dataclass(frozen=True)
class Quality:
    """Passes over a pair, each at its own scale; later ones start from the flow of the one before.

    The first pass runs all levels. A pass that starts from a flow, a later one or one with an
    initial flow, skips the levels that are coarser than `start`.
    """

    name: str
    scales: tuple[float, ...] = (1.0,)
    """Scale of the frames in each pass, relative to quality "normal"."""
    start: int = 8
    """Stride of the first level that runs in a pass that starts from a flow."""

    def __post_init__(self) -> None:
        if not self.scales or any(not 0.1 <= scale <= 8 for scale in self.scales):
            raise InputError(
                f"a quality has a scale from 0.1 to 8 for each pass, got {self.scales}"
            )
        if self.start not in STRIDES:
            raise InputError(f"the stride to start at must be one of {STRIDES}, got {self.start}")

    def check_for(self, config: ModelConfig) -> None:
        """Refuse a network that does not support this quality."""
        if len(self.scales) == 1:
            return
        if not config.begins_from_flow:
            raise InputError(
                f"quality {self.name!r} needs a network that can start from a flow; host "
                f"{config.host!r} cannot, use quality {NORMAL!r}"
            )
        if config.strides[-1] > self.start:
            raise InputError(
                f"quality {self.name!r} starts at stride {self.start}, and this network's finest "
                f"level has stride {config.strides[-1]}; use quality {NORMAL!r}"
            )


BEST = Quality("best", (1.0, 2.0), start=16)
QUALITIES = {quality.name: quality for quality in (Quality("fast", (0.7,)), Quality(NORMAL), BEST)}
"""The qualities that users choose from; docs/decisions/0008-two-scales.md explains the numbers."""


def find_quality(quality: "str | Quality") -> Quality:
    """Return the quality of this name; a `Quality` is returned unchanged."""
    if isinstance(quality, Quality):
        return quality
    if quality not in QUALITIES:
        raise unknown_name("quality", quality, QUALITIES)
    return QUALITIES[quality]
