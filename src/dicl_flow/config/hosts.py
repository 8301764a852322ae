"""The hosts: one record each, with all the defaults that depend on it, and what it can do."""

from collections.abc import Mapping
from dataclasses import dataclass

from .level import LevelConfig
from .loss import LossConfig


@dataclass(frozen=True)
class HostRecord:
    """The defaults of a host, and what it supports."""

    levels: tuple[LevelConfig, ...]
    loss: LossConfig
    learning_rate: float
    """The rate on FlyingChairs, which is the default of `OptimizerConfig.learning_rate`."""
    learning_rate_with_dicl: float | None = None
    """The same with the matcher "dicl"; None: no other."""
    projection: bool = False
    """The default of `ModelConfig.projection`; a host with False does not support it."""
    own_matcher: str | None = None
    """Its own matcher, if that is one of `MATCHERS`."""
    has_scores: bool = False
    """Whether its levels return matching scores, which `LossConfig.matching` trains."""
    begins_from_flow: bool = False
    """Whether it can start from a given flow: a level needs nothing else of the coarser one."""
    any_width: bool = False
    """Whether `ModelConfig.feature_channels` can change the width of its features."""
    deeper_features: bool = False
    """Whether its features have a map of twice the stride of the coarsest level."""
    finest_stride: int = 2
    """The finest stride at which it has features."""
    aligned_corners: bool = True
    """Whether corners are aligned when its maps are resized; otherwise pixels are areas."""
    relative_memory: float = 1.0
    """Of an estimate, by the width of what is compared: relative to that of the paper."""

    def rate_with(self, matcher: str | None) -> float:
        """Return the default learning rate with a matcher; None: the host's own."""
        own = self.learning_rate
        return own if matcher != "dicl" else self.learning_rate_with_dicl or own


_DEEP_CONTEXT = ((64, 1), (128, 2), (128, 4), (96, 8), (64, 16), (32, 1))
_WIDE_CONTEXT = ((128, 1), (128, 2), (128, 4), (96, 8), (64, 16), (32, 1))

PAPER_LEVELS = (
    LevelConfig(64, context=((64, 1), (64, 2), (32, 1))),
    LevelConfig(32, context=((64, 1), (128, 2), (64, 4), (32, 1))),
    LevelConfig(16, context=((64, 1), (128, 2), (128, 4), (64, 8), (32, 1))),
    LevelConfig(8, context=_DEEP_CONTEXT),
    LevelConfig(4, context=_DEEP_CONTEXT),
)

HOST_RECORDS: Mapping[str, HostRecord] = {
    "dicl": HostRecord(
        PAPER_LEVELS,
        LossConfig((0.5, 0.5, 0.5, 0.75, 1.0), (0.4, 0.4, 0.4, 0.6, 0.8), "averaged"),
        learning_rate=1e-3,  # the paper, section 4
        projection=True,
        own_matcher="dicl",
        has_scores=True,
        begins_from_flow=True,
        any_width=True,
        deeper_features=True,
    ),
    "pwcnet": HostRecord(
        (*(LevelConfig(s, 4) for s in (64, 32, 16, 8)), LevelConfig(4, 4, _WIDE_CONTEXT)),
        LossConfig((0.32, 0.08, 0.02, 0.01, 0.005), (), "multi-scale"),
        learning_rate=1e-4,  # Sun et al. 2018, section 4
        # half, to stay stable: an author, from memory, in jytime/DICL-Flow, issue 5
        learning_rate_with_dicl=5e-5,
    ),
    "vcn": HostRecord(
        tuple(LevelConfig(s, 4, _WIDE_CONTEXT) for s in (64, 32, 16, 8, 4)),
        LossConfig((0.25, 0.25, 0.25, 0.5, 1.0), (), "summed"),
        learning_rate=1e-3,  # its released code, main.py; nothing is known of DICL in it
        finest_stride=4,
        aligned_corners=False,
        relative_memory=1.4,  # 64 channels, not 32
    ),
}
HOSTS = tuple(HOST_RECORDS)
