"""The settings of a network: levels, losses, hosts; the qualities and calibration of estimates."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from math import inf, isfinite, lcm
from typing import Any, TypeAlias

from ..errors import InputError, check_name
from .strict import JsonConfig

Radii: TypeAlias = tuple[tuple[int, int], ...]
"""(stride, search radius) of some levels, coarsest first."""
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
            pairs = f"(width, dilation) pairs of 1 to {MOST_CHANNELS}"
            raise InputError(f"context layers must be {pairs}, got {self.context}")

    @property
    def num_hypotheses(self) -> int:
        """How many displacements are compared at each pixel."""
        return (2 * self.radius + 1) ** 2

    @property
    def context_scale(self) -> float:
        """Factor of the context net's output before it is added to the flow."""
        return 2 / self.stride


LOSSES = ("averaged", "multi-scale", "summed")
FROM_HOST: Any = None  # a default that the record of the host replaces


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
    Another kind than the host's needs `refined` and `matched`."""
    matching: tuple[float, ...] = ()
    """For the cross-entropy of the scores, an addition to the paper; hosts other than "dicl" train
    without. A level of weight 0 costs nothing."""
    matching_weight: tuple[float, float] = (0.3, 0.03)
    """Factor of that cross-entropy at the start and at the end of the run, linear in between."""
    exponent: float = 1.0
    """averaged: the power to which end-point errors are raised; below 1, large ones count less."""
    photometric: tuple[float, float] = (0.0, 0.0)
    """Weights of the census loss and of the smoothness of the flow on pairs without ground truth:
    those of an `UnlabelledBatch`. Other batches cost nothing; the results are the same."""

    def __post_init__(self) -> None:
        if self.kind is not FROM_HOST:
            check_name("loss.kind", self.kind, LOSSES)
        if not 0.1 <= self.exponent <= 1:
            raise InputError(f"loss.exponent must be in [0.1, 1], got {self.exponent:g}")
        for key in ("matching", "matching_weight", "photometric"):
            if any(weight < 0 for weight in getattr(self, key)):
                raise InputError(f"loss.{key} must not be negative, got {getattr(self, key)}")
        if self.refined == () == self.matched:
            raise InputError("loss.refined and loss.matched are both empty; nothing would train")

    def filled_in(self, own: "LossConfig") -> "LossConfig":
        """Return this loss with the defaults replaced by the host's `own`."""
        if self.kind not in (FROM_HOST, own.kind) and FROM_HOST in (self.refined, self.matched):
            raise InputError(
                f"loss.kind {self.kind!r} is not the host's own, {own.kind!r}, and the host's "
                f"weights do not suit it: give loss.refined and loss.matched as well"
            )
        keys = [k for k in ("refined", "matched", "kind") if getattr(self, k) is FROM_HOST]
        return replace(self, **{key: getattr(own, key) for key in keys})


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
    any_radius: bool = False
    """Whether its levels can compare fewer displacements with the same weights."""
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
        any_radius=True,
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

MATCHERS = ("dot", "cosine", "mlp", "reduced", "dicl")
STRIDED_MATCHERS = ("dicl",)  # these have a map of twice the stride of their level
PADDINGS = ("replicate", "white", "resize")
_FROM_HOST = ("levels", "projection")


@dataclass(frozen=True)
class ModelConfig(JsonConfig):
    """The settings of a network; the default is that of the paper."""

    _CALLED = "the model config"

    host: str = "dicl"
    """The architecture around the matcher."""
    matcher: str | None = None
    """How two feature vectors are compared; None: as the host does by itself."""
    projection: bool = FROM_HOST
    """Reweight the scores by a displacement-aware projection (DAP); only the host "dicl" can."""
    context: bool = True
    """Refine the flow with context nets; VCN weights its hypotheses by them, or takes the mean."""
    feature_channels: int = 32
    """Width of the features that are compared; the host "dicl" only."""
    padding: str = "replicate"
    """How an image gets sides that are multiples of `pad_multiple`: padded with its repeated border
    or with white, or resized."""
    max_pixels: int = 0
    """With "resize": larger frames are scaled down to about this number of pixels; 0: never."""
    multiple: int = 1
    """The sides of frames are also multiples of this, so that networks that are compared see the
    same frames, or the sizes they were trained with."""
    frame_size: tuple[int, ...] = ()
    """With "resize": (height, width) that every frame is resized to, for networks that know one
    size only; empty: by `max_pixels` and multiples."""
    levels: tuple[LevelConfig, ...] = FROM_HOST
    """Coarsest first; each has half the stride of the one before."""

    def __post_init__(self) -> None:
        check_name("host", self.host, HOSTS)
        for key in _FROM_HOST:
            if getattr(self, key) is FROM_HOST:
                object.__setattr__(self, key, getattr(self.host_record, key))
        self._check_host()
        self._check_feeding()
        if self.matcher is not None:
            check_name("matcher", self.matcher, MATCHERS)
        for key in ("multiple", "feature_channels"):
            if not 1 <= (value := getattr(self, key)) <= MOST_CHANNELS:
                raise InputError(f"{key} must be 1 to {MOST_CHANNELS}, got {value}")
        if not self.levels:
            raise InputError("levels is empty; a network needs at least one level")
        if any(side < 1 or side % self.pad_multiple for side in self.frame_size):
            multiples = f"multiples of {self.pad_multiple}"
            raise InputError(f"frame_size must be {multiples}, got {list(self.frame_size)}")
        if any(coarse != 2 * fine for coarse, fine in pairwise(self.strides)):
            order = "from coarse to fine, each with half the stride of the one before"
            raise InputError(f"levels must go {order}; got {self.strides}")

    def _check_feeding(self) -> None:
        check_name("padding", self.padding, PADDINGS)
        if self.max_pixels < 0 or (self.max_pixels and not self.resizes):
            raise InputError(f"max_pixels goes with padding 'resize', got {self.max_pixels}")
        if self.frame_size and (not self.resizes or self.max_pixels):
            why = "goes with padding 'resize', without max_pixels"
            raise InputError(f"frame_size {why}, got {list(self.frame_size)}")
        if len(self.frame_size) not in (0, 2):
            raise InputError(f"frame_size must be (height, width), got {list(self.frame_size)}")

    def _check_host(self) -> None:
        host, finest = self.host_record, self.host_record.finest_stride
        if self.projection and not host.projection:
            raise InputError(f"host {self.host!r} has no projection; remove projection")
        if not host.any_width and self.feature_channels != ModelConfig.feature_channels:
            raise InputError(f"host {self.host!r} has fixed widths; remove feature_channels")
        if min(self.strides, default=finest) < finest:
            missing = f"has no features at stride {self.strides[-1]}"
            raise InputError(f"host {self.host!r} {missing}; its finest level is {finest}")

    @property
    def host_record(self) -> HostRecord:
        """The defaults of the host, and what it can do."""
        return HOST_RECORDS[self.host]

    def with_host(self, host: str) -> "ModelConfig":
        """Return the settings for another host; defaults of this one become its own."""
        record = self.host_record
        defaults = [key for key in _FROM_HOST if getattr(self, key) == getattr(record, key)]
        return replace(self, host=host, **dict.fromkeys(defaults, FROM_HOST))

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each level, coarsest first."""
        return tuple(level.stride for level in self.levels)

    def smaller(self, radii: Radii) -> Radii:
        """The entries of `radii` that are below the radius of a level, coarsest first."""
        wanted = dict(radii)
        found = ((level.stride, wanted.get(level.stride, level.radius)) for level in self.levels)
        return tuple(
            pair for pair, level in zip(found, self.levels, strict=True) if pair[1] < level.radius
        )

    def with_radii(self, radii: Radii) -> "ModelConfig":
        """The same network, its levels searching no farther than `radii`."""
        smaller = dict(self.smaller(radii))
        levels = (
            replace(level, radius=smaller.get(level.stride, level.radius)) for level in self.levels
        )
        return replace(self, levels=tuple(levels))

    @property
    def reach(self) -> tuple[int, ...]:
        """Largest motion, in input pixels, that each level can represent."""
        return tuple(accumulate(level.radius * level.stride for level in self.levels))

    @property
    def deepest_stride(self) -> int:
        """Stride of the coarsest map in the network; image sides are multiples of it."""
        deeper = self.host_record.deeper_features or self.matcher in STRIDED_MATCHERS
        return self.levels[0].stride * (2 if deeper else 1)

    @property
    def pad_multiple(self) -> int:
        """The sides of frames, in training and estimation, are multiples of this."""
        return lcm(self.multiple, self.deepest_stride)

    @property
    def resizes(self) -> bool:
        """Whether frames are resized to sides that the network takes, instead of padded."""
        return self.padding == "resize"

    def at_full_size(self) -> "ModelConfig":
        """The same network, fed with frames that are padded instead of resized."""
        padded = replace(self, padding="replicate", max_pixels=0, frame_size=())
        return padded if self.resizes else self


NORMAL = "normal"


@dataclass(frozen=True)
class Quality:
    """Passes over a pair, each at its own scale; later ones start from the flow of the one before.

    A pass that starts from a flow skips the levels that are coarser than `start`.
    """

    name: str
    scales: tuple[float, ...] = (1.0,)
    """Scale of the frames in each pass, relative to quality "normal"."""
    start: int = 8
    """Stride of the first level of a pass that starts from a flow."""
    radii: Radii = ()
    """(stride, radius) of levels that compare fewer displacements than the network has."""

    def __post_init__(self) -> None:
        if not self.scales or not all(0.1 <= scale <= 8 for scale in self.scales):
            raise InputError(f"the scale of each pass must be from 0.1 to 8, got {self.scales}")
        if self.start not in STRIDES:
            raise InputError(f"the stride to start at must be one of {STRIDES}, got {self.start}")
        strides = [stride for stride, _ in self.radii]
        if strides != sorted({*strides} & {*STRIDES}, reverse=True):
            raise InputError(f"radii must be of different strides of {STRIDES}, got {self.radii}")
        if not all(1 <= radius <= MOST_RADIUS for _, radius in self.radii):
            raise InputError(f"a search radius must be 1 to {MOST_RADIUS}, got {self.radii}")

    def check_for(self, config: ModelConfig) -> None:
        """Refuse a network that does not support this quality."""
        problem = None
        if not config.host_record.begins_from_flow:
            problem = f"needs a network that can start from a flow; host {config.host!r} cannot"
        elif config.strides[-1] > self.start:
            finest = f"this network's finest level has stride {config.strides[-1]}"
            problem = f"starts at stride {self.start}, and {finest}"
        problem = problem if len(self.scales) > 1 else None
        if self.radii and not config.host_record.any_radius:
            problem = f"searches less far, which host {config.host!r} cannot"
        if problem:
            raise InputError(f"quality {self.name!r} {problem}; use quality {NORMAL!r}")


BEST = Quality("best", (1.0, 2.0), start=16)
LIVE = Quality("live", radii=((16, 2), (8, 1), (4, 1)))
QUALITIES = {
    quality.name: quality for quality in (LIVE, Quality("fast", (0.7,)), Quality(NORMAL), BEST)
}
"""The qualities that users choose from; docs/decisions explains the numbers: 0008 those of two
scales, 0015 those of small radii."""


def find_quality(quality: str | Quality) -> Quality:
    """Return the quality of this name; a `Quality` is returned unchanged."""
    if isinstance(quality, Quality):
        return quality
    check_name("quality", quality, QUALITIES)
    return QUALITIES[quality]


@dataclass(frozen=True)
class Calibration(JsonConfig):
    """A logistic regression: sigmoid(bias + sum of weight x cue); see `estimation.confidence`.

    The result is the probability that the error of the flow is at most `threshold` px, in pixels
    of the frame that the network sees. There is one weight under the name of each cue.
    """

    _CALLED = "the calibration"

    bias: float
    entropy: float
    refinement: float
    disagreement: float
    length: float
    edge: float
    difference: float
    outside: float
    threshold: float = 1.0
    scenes: int = 0
    """Number of rendered scenes it was fitted to."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < inf:
            raise InputError(f"the threshold must be positive, got {self.threshold}")
        if not all(map(isfinite, (self.bias, *self.weights))):
            raise InputError("the calibration contains NaN or infinite values")

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of `CUES`."""
        return tuple(getattr(self, cue) for cue in CUES)

    @property
    def meaning(self) -> str:
        """The meaning of a confidence, in words."""
        return f"probability of an error of at most {self.threshold:g} px"


_OTHERS = ("bias", "threshold", "scenes")
CUES = tuple(field.name for field in fields(Calibration) if field.name not in _OTHERS)
"""What a confidence is computed from, in this order."""
