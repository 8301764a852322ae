"""Levels and losses, and the hosts: one record each, with all that depends on the host."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError, unknown_name

STRIDES = (64, 32, 16, 8, 4, 2)  # what the feature pyramid can deliver
MOST_RADIUS, MOST_CHANNELS = 64, 4096  # far above what is of use: a file could ask for anything


@dataclass(frozen=True)
class LevelConfig:
    """One pyramid level: its stride, its search radius and its context net."""

    stride: int
    """Input pixels per cell of this level."""
    radius: int = 3
    """Displacements range from -radius to radius, in cells of this level, on both axes."""
    context: tuple[tuple[int, int], ...] = ()
    """(width, dilation) of each hidden layer of the context net."""

    def __post_init__(self) -> None:
        if self.stride not in STRIDES:
            raise InputError(f"level stride must be one of {STRIDES}, got {self.stride}")
        if not 1 <= self.radius <= MOST_RADIUS:
            raise InputError(f"level radius must be 1 to {MOST_RADIUS}, got {self.radius}")
        if not all(1 <= number <= MOST_CHANNELS for layer in self.context for number in layer):
            raise InputError(
                f"context layers must be (width, dilation) pairs of 1 to {MOST_CHANNELS}, got "
                f"{self.context}"
            )

    @property
    def num_hypotheses(self) -> int:
        """How many displacements are compared at each pixel."""
        return (2 * self.radius + 1) ** 2

    @property
    def context_scale(self) -> float:
        """Factor of the context net's output before it is added to the flow."""
        return 2 / self.stride


LOSSES = ("averaged", "multi-scale", "summed")
FROM_HOST: Any = None  # a default that the record of the host replaces (config/hosts.py)


@dataclass(frozen=True)
class LossConfig:
    """Weights of the flows of all levels, coarsest first; empty: that kind of flow is not trained.

    `refined`, `matched` and `kind` default to those of the host; `TrainConfig` fills them in.
    """

    refined: tuple[float, ...] = FROM_HOST
    """For the flow after the context net."""
    matched: tuple[float, ...] = FROM_HOST
    """For the flow read off the scores."""
    kind: str = FROM_HOST
    """averaged: that of DICL-Flow, at full size, each level within its reach, mean of all terms;
    multi-scale: that of PWC-Net, at the size of each level, in units of 20 px, sum over pixels;
    summed: that of VCN, at full size, sum of all terms.
    A kind other than the host's needs `refined` and `matched`."""
    matching: tuple[float, ...] = ()
    """For the cross-entropy of the scores, which is added to the rest and is not in the paper.
    Only the host "dicl" has such scores; other hosts train without. A level of weight 0 costs
    nothing."""
    matching_weight: tuple[float, float] = (0.3, 0.03)
    """Factor of that cross-entropy at the start and at the end of the run, linear in between."""
    exponent: float = 1.0
    """averaged: the power to which end-point errors are raised; below 1, large ones count less."""

    def __post_init__(self) -> None:
        if self.kind is not FROM_HOST and self.kind not in LOSSES:
            raise unknown_name("loss.kind", self.kind, LOSSES)
        if not 0.1 <= self.exponent <= 1:
            raise InputError(f"loss.exponent must be in [0.1, 1], got {self.exponent:g}")
        for key in ("matching", "matching_weight"):
            if any(weight < 0 for weight in getattr(self, key)):
                raise InputError(f"loss.{key} must not be negative, got {getattr(self, key)}")
        if self.refined == () == self.matched:
            raise InputError("loss.refined and loss.matched are both empty; nothing would train")

    def filled_in(self, own: "LossConfig") -> "LossConfig":
        """Return this loss with the defaults replaced by the host's `own`."""
        weights = {key: getattr(self, key) for key in ("refined", "matched")}
        if self.kind not in (FROM_HOST, own.kind) and FROM_HOST in weights.values():
            raise InputError(
                f"loss.kind {self.kind!r} is not the host's own, {own.kind!r}, and the host's "
                f"weights do not suit it: give loss.refined and loss.matched as well"
            )
        chosen = {**weights, "kind": self.kind}
        defaults = {key: getattr(own, key) for key, value in chosen.items() if value is FROM_HOST}
        return replace(self, **defaults)


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
