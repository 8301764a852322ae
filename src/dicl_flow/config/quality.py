"""How much work an estimate may take."""

from dataclasses import dataclass

from ..errors import InputError, unknown_name
from .levels import STRIDES
from .model import ModelConfig

NORMAL = "normal"


@dataclass(frozen=True)
class Quality:
    """Passes over a pair, each at a scale of its own; a later one begins from the flow found.

    The first pass goes from the coarsest level to the finest. Each later one, and the only one
    where a flow to begin from is given, skips the levels that are coarser than `start`.
    """

    name: str
    scales: tuple[float, ...] = (1.0,)
    """How many times larger than normally the frames are fed, for each pass."""
    start: int = 8
    """The stride of the first level that runs in a pass that begins from a flow."""

    def __post_init__(self) -> None:
        if not self.scales or any(not 0.1 <= scale <= 8 for scale in self.scales):
            raise InputError(
                f"a quality has a scale from 0.1 to 8 for each pass, got {self.scales}"
            )
        if self.start not in STRIDES:
            raise InputError(f"the stride to start at must be one of {STRIDES}, got {self.start}")

    def check_for(self, config: ModelConfig) -> None:
        """Refuse a network that cannot do it."""
        if len(self.scales) == 1:
            return
        if not config.begins_from_flow:
            raise InputError(
                f"quality {self.name!r} needs a network that can begin from a flow; host "
                f"{config.host!r} cannot, use quality {NORMAL!r}"
            )
        if config.strides[-1] > self.start:
            raise InputError(
                f"quality {self.name!r} starts at stride {self.start}, and this network's finest "
                f"level has stride {config.strides[-1]}; use quality {NORMAL!r}"
            )

    @property
    def largest_scale(self) -> float:
        """The scale of the pass that needs the most memory."""
        return max(self.scales)


BEST = Quality("best", (1.0, 2.0), start=16)
QUALITIES = {quality.name: quality for quality in (Quality("fast", (0.7,)), Quality(NORMAL), BEST)}
"""What users choose from; why these numbers: docs/decisions/0008-two-scales.md."""


def find_quality(quality: "str | Quality") -> Quality:
    """Return the quality of that name; one that is no name is taken as it is."""
    if isinstance(quality, Quality):
        return quality
    if quality not in QUALITIES:
        raise unknown_name("quality", quality, QUALITIES)
    return QUALITIES[quality]
