"""The settings of a network, the qualities of its estimates, and their calibration."""

import dataclasses
import json
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, isfinite, lcm

from ..errors import InputError, unknown_name
from .hosts import FROM_HOST, HOST_RECORDS, HOSTS, MOST_CHANNELS, STRIDES, HostRecord, LevelConfig
from .strict import read_json, structure

MATCHERS = ("dot", "cosine", "mlp", "reduced", "dicl")
STRIDED_MATCHERS = ("dicl",)  # these need maps with even sides
PADDINGS = ("replicate", "white", "resize")
_FROM_HOST = ("levels", "projection")


@dataclass(frozen=True)
class ModelConfig:
    """The settings of a network; the default is that of the paper."""

    host: str = "dicl"
    """The architecture around the matcher."""
    matcher: str | None = None
    """How two feature vectors are compared; None: as the host does by itself."""
    projection: bool = FROM_HOST
    """Reweight the scores with a displacement-aware projection (DAP): the host "dicl" does, the
    others cannot."""
    context: bool = True
    """Refine the flow with context nets, at the levels that have one. VCN weights its hypotheses
    with them; without, it takes their mean."""
    feature_channels: int = 32
    """Width of the features that are compared; the host "dicl" only."""
    padding: str = "replicate"
    """How an image gets sides that are multiples of `pad_multiple`: padded with its repeated border
    or with white, or resized."""
    max_pixels: int = 0
    """With "resize": larger frames are scaled down to about this number of pixels; 0: never."""
    multiple: int = 1
    """The sides of frames are also multiples of this, even if the network needs less: networks that
    are compared then see the same frames, or the sizes they were trained with."""
    levels: tuple[LevelConfig, ...] = FROM_HOST
    """Coarsest first; each has half the stride of the one before."""

    def __post_init__(self) -> None:
        if self.host not in HOSTS:
            raise unknown_name("host", self.host, HOSTS)
        for key in _FROM_HOST:
            if getattr(self, key) is FROM_HOST:
                object.__setattr__(self, key, getattr(self.host_record, key))
        self._check_host()
        if self.matcher is not None and self.matcher not in MATCHERS:
            raise unknown_name("matcher", self.matcher, MATCHERS)
        if self.padding not in PADDINGS:
            raise unknown_name("padding", self.padding, PADDINGS)
        if self.max_pixels < 0 or (self.max_pixels and not self.resizes):
            raise InputError(f"max_pixels goes with padding 'resize', got {self.max_pixels}")
        for key in ("multiple", "feature_channels"):
            if not 1 <= (value := getattr(self, key)) <= MOST_CHANNELS:
                raise InputError(f"{key} must be 1 to {MOST_CHANNELS}, got {value}")
        if not self.levels:
            raise InputError("levels is empty; a network needs at least one level")
        if any(coarse != 2 * fine for coarse, fine in pairwise(self.strides)):
            raise InputError(
                f"levels must go from coarse to fine, each with half the stride of the one before; "
                f"got {self.strides}"
            )

    @property
    def host_record(self) -> HostRecord:
        """The defaults of the host, and what it can do."""
        return HOST_RECORDS[self.host]

    def _check_host(self) -> None:
        """Refuse what the host cannot do."""
        finest = self.host_record.finest_stride
        if self.projection and not self.host_record.projection:
            raise InputError(f"host {self.host!r} has no projection; drop projection")
        if not self.host_record.any_width and self.feature_channels != ModelConfig.feature_channels:
            raise InputError(f"host {self.host!r} has fixed widths; drop feature_channels")
        if any(stride < finest for stride in self.strides):
            raise InputError(
                f"host {self.host!r} has no features at stride {self.strides[-1]}; its finest "
                f"level is {finest}"
            )

    def with_host(self, host: str) -> "ModelConfig":
        """Return the settings for another host; defaults of this one become its own."""
        own = {key: getattr(self.host_record, key) for key in _FROM_HOST}
        defaults = [key for key, value in own.items() if getattr(self, key) == value]
        return dataclasses.replace(self, host=host, **dict.fromkeys(defaults, FROM_HOST))

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each level, coarsest first."""
        return tuple(level.stride for level in self.levels)

    @property
    def reach(self) -> tuple[int, ...]:
        """Largest motion, in input pixels, that each level can represent."""
        return tuple(accumulate(level.radius * level.stride for level in self.levels))

    @property
    def deepest_stride(self) -> int:
        """Stride of the coarsest map anywhere in the network; image sides are multiples of it.

        Strided matchers, like some hosts, have a map of twice the stride of the coarsest level.
        """
        deeper = self.host_record.deeper_features or self.matcher in STRIDED_MATCHERS
        return self.levels[0].stride * (2 if deeper else 1)

    @property
    def begins_from_flow(self) -> bool:
        """Whether it can start from a given flow."""
        return self.host_record.begins_from_flow

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
        if not self.resizes:
            return self
        return dataclasses.replace(self, padding="replicate", max_pixels=0)

    def to_json(self) -> str:
        """One line of JSON that `ModelConfig.from_json` reads back as an equal config."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ModelConfig":
        """Read what `to_json` wrote; unknown keys and wrong types are refused."""
        return structure(cls, read_json(text, "the model config"))


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
                f"a quality must have a scale from 0.1 to 8 for each pass, got {self.scales}"
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


@dataclass(frozen=True)
class Calibration:
    """A logistic regression: sigmoid(bias + sum of weight x cue).

    The result is the probability that the error of the flow is at most `threshold` px, in pixels
    of the frame that the network sees. There is one weight for each cue, under the name of the
    cue; see `estimation.confidence`.
    """

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
        """One for each of `CUES`."""
        return tuple(getattr(self, cue) for cue in CUES)

    @property
    def meaning(self) -> str:
        """The meaning of a confidence, in words."""
        return f"probability of an error of at most {self.threshold:g} px"

    def to_json(self) -> str:
        """One line of JSON that `Calibration.from_json` reads back as an equal calibration."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Calibration":
        """Read what `to_json` wrote; unknown keys and wrong types are refused."""
        return structure(cls, read_json(text, "the calibration"))


_OTHERS = ("bias", "threshold", "scenes")
CUES = tuple(field.name for field in dataclasses.fields(Calibration) if field.name not in _OTHERS)
"""What a confidence is computed from, in this order."""
