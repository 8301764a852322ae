"""What a network is."""

import dataclasses
import json
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import lcm

from ..errors import InputError, unknown_name
from .strict import structure

HOSTS = ("dicl", "pwcnet", "vcn")
MATCHERS = ("dot", "cosine", "mlp", "reduced", "dicl")
STRIDED_MATCHERS = ("dicl",)  # want maps of even sides
PADDINGS = ("replicate", "white", "resize")
STRIDES = (64, 32, 16, 8, 4, 2)  # what the feature pyramid can deliver


@dataclass(frozen=True)
class LevelConfig:
    """One pyramid level: where it sits, how far it looks, how its context net is built."""

    stride: int
    """Input pixels per pixel of this level."""
    radius: int = 3
    """Hypotheses reach from -radius to radius, in pixels of this level, on both axes."""
    context: tuple[tuple[int, int], ...] = ()
    """(width, dilation) of each hidden layer of the context net."""

    def __post_init__(self) -> None:
        if self.stride not in STRIDES:
            raise InputError(f"level stride must be one of {STRIDES}, got {self.stride}")
        if self.radius < 1:
            raise InputError(f"level radius must be at least 1, got {self.radius}")
        if any(width < 1 or dilation < 1 for width, dilation in self.context):
            raise InputError(
                f"context layers are (width, dilation) pairs of at least 1, got {self.context}"
            )

    @property
    def num_hypotheses(self) -> int:
        """How many displacements are compared at each pixel."""
        return (2 * self.radius + 1) ** 2

    @property
    def context_scale(self) -> float:
        """What the context net's output is multiplied by before it is added to the flow."""
        return 2 / self.stride


_DEEP_CONTEXT = ((64, 1), (128, 2), (128, 4), (96, 8), (64, 16), (32, 1))

PAPER_LEVELS = (
    LevelConfig(64, context=((64, 1), (64, 2), (32, 1))),
    LevelConfig(32, context=((64, 1), (128, 2), (64, 4), (32, 1))),
    LevelConfig(16, context=((64, 1), (128, 2), (128, 4), (64, 8), (32, 1))),
    LevelConfig(8, context=_DEEP_CONTEXT),
    LevelConfig(4, context=_DEEP_CONTEXT),
)

_WIDE_CONTEXT = ((128, 1), (128, 2), (128, 4), (96, 8), (64, 16), (32, 1))

HOST_LEVELS = {
    "dicl": PAPER_LEVELS,
    "pwcnet": (*(LevelConfig(s, 4) for s in (64, 32, 16, 8)), LevelConfig(4, 4, _WIDE_CONTEXT)),
    "vcn": tuple(LevelConfig(s, 4, _WIDE_CONTEXT) for s in (64, 32, 16, 8, 4)),
}


@dataclass(frozen=True)
class ModelConfig:
    """A network: the default is the paper's."""

    host: str = "dicl"
    """The architecture around the matcher."""
    matcher: str | None = None
    """How two feature vectors are compared; None: the host's own way."""
    projection: bool = True
    """Reweight the scores with a displacement-aware projection (DAP); the host "dicl" only."""
    context: bool = True
    """Refine the flow with context nets, at the levels that have one. VCN weighs its hypotheses
    by them; without, it takes the mean."""
    feature_channels: int = 32
    """Width of the features that are compared; the host "dicl" only."""
    padding: str = "replicate"
    """How an image gets sides that are multiples of `pad_multiple`: filled up with its border
    repeated, or with white, or resized."""
    max_pixels: int = 0
    """With "resize": frames of more pixels are scaled down to about so many; 0: never."""
    multiple: int = 1
    """Frames are fed in multiples of this as well, where the network takes smaller ones: so that
    networks which are compared see the same frames, or those of their training."""
    levels: tuple[LevelConfig, ...] = PAPER_LEVELS
    """Coarsest first; each has half the stride of the one before. The levels that are the own
    ones of any host stand for those of this host."""

    def __post_init__(self) -> None:
        if self.host not in HOSTS:
            raise unknown_name("host", self.host, HOSTS)
        if self.levels in HOST_LEVELS.values():
            object.__setattr__(self, "levels", HOST_LEVELS[self.host])
        if self.host != "dicl":
            object.__setattr__(self, "projection", False)
            if self.feature_channels != ModelConfig.feature_channels:
                raise InputError(f"host {self.host!r} has its own widths; drop feature_channels")
        if self.host == "vcn" and self.strides[-1:] == (2,):
            raise InputError("host 'vcn' has no features at stride 2; its finest level is 4")
        if self.matcher is not None and self.matcher not in MATCHERS:
            raise unknown_name("matcher", self.matcher, MATCHERS)
        if self.padding not in PADDINGS:
            raise unknown_name("padding", self.padding, PADDINGS)
        if self.max_pixels < 0 or (self.max_pixels and not self.resizes):
            raise InputError(f"max_pixels goes with padding 'resize', got {self.max_pixels}")
        if self.multiple < 1:
            raise InputError(f"multiple must be at least 1, got {self.multiple}")
        if self.feature_channels < 1:
            raise InputError(f"feature_channels must be at least 1, got {self.feature_channels}")
        if not self.levels:
            raise InputError("levels is empty; a network needs at least one level")
        if any(coarse != 2 * fine for coarse, fine in pairwise(self.strides)):
            raise InputError(
                f"levels go from coarse to fine, halving the stride each time; got {self.strides}"
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each level, coarsest first."""
        return tuple(level.stride for level in self.levels)

    @property
    def reach(self) -> tuple[int, ...]:
        """Largest displacement, in input pixels, that each level can still represent."""
        return tuple(accumulate(level.radius * level.stride for level in self.levels))

    @property
    def deepest_stride(self) -> int:
        """Of the coarsest map anywhere in the network, which takes multiples of this.

        A strided matcher goes one octave below the coarsest level; so does the "dicl" host.
        """
        deeper = self.host == "dicl" or self.matcher in STRIDED_MATCHERS
        return self.levels[0].stride * (2 if deeper else 1)

    @property
    def begins_from_flow(self) -> bool:
        """Whether a level needs nothing of the coarser one but its flow, which may be given."""
        return self.host == "dicl"

    @property
    def pad_multiple(self) -> int:
        """Frames are fed, and trained on, in multiples of this."""
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
        """One line of JSON that `ModelConfig.from_json` reads back to an equal config."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ModelConfig":
        """Read what `to_json` wrote; anything unknown or ill-typed is refused."""
        try:
            return structure(cls, json.loads(text))
        except json.JSONDecodeError as error:
            raise InputError(f"the model config is not valid JSON: {error}") from None
