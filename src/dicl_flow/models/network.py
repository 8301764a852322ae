"""What all hosts have in common, inputs and outputs, and how they are built from a config."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..errors import InputError
from ..ops import upsample_flow
from .blocks import initialize

Pair: TypeAlias = tuple[Tensor, Tensor]  # features of both images at one level
_HOSTS: dict[str, type["FlowNetwork"]] = {}  # by the name in a config


class LevelFlow(NamedTuple):
    """The result of one level, in pixels of that level, never below float32."""

    matched: Tensor  # (B, 2, H, W): read off the scores
    refined: Tensor  # (B, 2, H, W): corrected by the context net, or else the matched flow
    entropy: Tensor  # (B, 1, H, W): ambiguity of the match, 0 … 1
    # (B, 1, H, W): logits that the remaining motion exceeds the radius; VCN in training
    out_of_range: Tensor | None = None
    scores: Tensor | None = None  # (B, U, V, H, W): of the matched flow; DICL-Flow in training
    start: Tensor | None = None  # (B, 2, H, W): what the scores are relative to; None: no motion

    def detach(self) -> "LevelFlow":
        """Return the same values without gradients."""
        parts = {name: part.detach() for name, part in self._asdict().items() if part is not None}
        return LevelFlow(**parts)


class InitialFlow(NamedTuple):
    """A flow to start from, instead of no motion at the coarsest level."""

    flow: Tensor  # (B, 2, H, W) in pixels of the images that the network sees, and of their size
    stride: int  # levels coarser than this are skipped


class FlowNetwork(nn.Module, ABC):
    """A host. Images come normalised to [-1, 1], sides multiples of `config.deepest_stride`."""

    training_only: str | None = None  # a part of the names of parameters that only training needs

    def __init__(self, config: ModelConfig, features: nn.Module, *levels: nn.Module) -> None:
        """`features` makes a pyramid of an image: one map for each level, coarsest first."""
        super().__init__()
        self.config, self.features = config, features
        self.levels = nn.ModuleDict(dict(zip(map(str, config.strides), levels, strict=True)))

    def __init_subclass__(cls, host: str | None = None) -> None:
        """`host` is the name in a config; accelerated versions have none."""
        if host is not None:
            _HOSTS[host] = cls

    @classmethod
    @abstractmethod
    def assemble(cls, config: ModelConfig) -> "FlowNetwork":
        """Assemble the network that `config` describes."""

    def initialize(self) -> None:
        """Give it its random weights."""
        initialize(self)

    def forward(
        self, image1: Tensor, image2: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        pyramids = self.features(image1), self.features(image2)
        return self.flow_from_features(*pyramids, image1, initial)

    def both_ways(
        self,
        image1: Tensor,
        image2: Tensor,
        initial: InitialFlow | None = None,
        initial_back: InitialFlow | None = None,
    ) -> tuple[list[LevelFlow], list[LevelFlow]]:
        """The flow and the backward flow; features are computed once for both."""
        self._check(image1, image2)
        pairs = list(self._halves(self.features(torch.cat([image1, image2]))))
        there = self.flow_from_pairs(pairs, image1, initial)
        return there, self.flow_from_pairs(((two, one) for one, two in pairs), image2, initial_back)

    def flow_from_features(
        self,
        pyramid1: Sequence[Tensor],
        pyramid2: Sequence[Tensor],
        image1: Tensor,
        initial: InitialFlow | None = None,
    ) -> list[LevelFlow]:
        """Match two feature pyramids, coarsest first; `image1` may guide the refinement."""
        return self.flow_from_pairs(zip(pyramid1, pyramid2, strict=True), image1, initial)

    def flow_from_pairs(
        self, pairs: Iterable[Pair], image1: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """The same from pairs of all levels, even of those that an initial flow makes it skip."""
        self._check_initial(image1, initial)
        flows, carried = [], None  # what a level passes on to the next finer one
        for level, (features1, features2) in zip(self.levels.values(), pairs, strict=True):
            flow, carried = level(features1, features2, carried)
            flows.append(flow)
        return flows

    def runs(self, stride: int, initial: InitialFlow | None) -> bool:
        """Whether the level of `stride` is computed."""
        return initial is None or stride <= initial.stride

    @staticmethod
    def _halves(pyramid: Iterable[Tensor]) -> Iterator[Pair]:
        """Features of both images in one batch -> those of each."""
        for features in pyramid:
            count = len(features) // 2
            yield features[:count], features[count:]

    def upsample(self, flow: Tensor, size: tuple[int, int]) -> Tensor:
        """Resize the flow of a level to `size` and scale its vectors, as this host does."""
        return upsample_flow(flow, size)

    def _check_initial(self, image1: Tensor, initial: InitialFlow | None) -> None:
        if initial is None:
            return
        if not self.config.host_record.begins_from_flow:
            raise InputError(
                f"host {self.config.host!r} cannot start from a flow: its levels need more than "
                f"that from the coarser ones; use host 'dicl'"
            )
        if initial.stride < self.config.strides[-1]:
            raise InputError(
                f"no level is left to run from stride {initial.stride} on; this network has the "
                f"strides {', '.join(map(str, self.config.strides))}"
            )
        expected = (image1.shape[0], 2, *image1.shape[-2:])
        shape = tuple(initial.flow.shape)
        if shape != expected:
            raise ValueError(f"the initial flow must be {expected}, got {shape}")

    def _check(self, image1: Tensor, image2: Tensor) -> None:
        if image1.shape != image2.shape:
            raise ValueError(f"image shapes differ: {image1.shape} and {image2.shape}")
        multiple = self.config.deepest_stride
        if any(side % multiple for side in image1.shape[-2:]):
            raise ValueError(
                f"image sides must be multiples of {multiple}, got {tuple(image1.shape[-2:])}; "
                f"use FlowEstimator or ops.pad_to_multiple"
            )


def network_type(config: ModelConfig) -> type[FlowNetwork]:
    """What `build` makes of `config`, without making it."""
    return _HOSTS[config.host]


def build(config: ModelConfig | None = None) -> FlowNetwork:
    """A network with random weights; without a config, the paper's."""
    config = config or ModelConfig()
    model = network_type(config).assemble(config)
    model.initialize()
    return model


def build_empty(config: ModelConfig) -> FlowNetwork:
    """The same network without values or memory, for weights that are assigned: that is faster."""
    with torch.device("meta"):
        return network_type(config).assemble(config)


def has_matching_net(config: ModelConfig) -> bool:
    """Whether `build` makes the paper's network: its host, and its matching net."""
    return config.host == "dicl" and config.matcher in (None, "dicl")


def count_parameters(model: nn.Module, *, inference: bool = False) -> int:
    """The number of trainable parameters; with `inference`, without those only training needs."""
    left_out = getattr(model, "training_only", None) if inference else None
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return sum(count for name, count in counts.items() if left_out is None or left_out not in name)
