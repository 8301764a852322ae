"""The settings of a network."""

import dataclasses
import json
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import lcm

from ..errors import InputError, unknown_name
from .hosts import HOST_RECORDS, HOSTS, HostRecord
from .level import MOST_CHANNELS, LevelConfig
from .loss import FROM_HOST
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
    """The sides of frames are multiples of this, too, even if the network needs less: networks that
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
                f"levels go from coarse to fine, each with half the stride of the one before; "
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

        Strided matchers and the host "dicl" have a map of twice the stride of the coarsest level.
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
