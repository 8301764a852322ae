"""DICL-Flow: a feature pyramid, then coarse to fine: match, project, read the flow off, refine."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..config import LevelConfig, ModelConfig
from ..ops import (
    displacement_probability,
    expected_displacement,
    normalized_entropy,
    resize,
    size_of,
    upsample_flow,
    warp,
)
from .blocks import ContextNet, ConvBlock
from .matching import DisplacementProjection, Matcher, build_matcher
from .network import FlowNetwork, InitialFlow, LevelFlow, Pair

WIDTHS = {2: 32, 4: 48, 8: 64, 16: 96, 32: 128, 64: 160, 128: 192}  # channels at each stride


class FeaturePyramid(nn.Module):
    """A double hourglass: down, up, down, up; each sweep merges with the maps of the one before.

    The last one gives features at each of `strides`; the bottleneck has twice the coarsest stride.
    """

    def __init__(self, strides: tuple[int, ...], channels: int = 32) -> None:
        super().__init__()
        deepest, finest = 2 * strides[0], strides[-1]
        descent = [stride for stride in WIDTHS if stride <= deepest]
        ascent = descent[::-1]
        last_ascent = [stride for stride in ascent if stride >= finest]
        width = WIDTHS[2]
        self.strides = strides
        self.stem = nn.Sequential(
            ConvBlock(3, width), ConvBlock(width, width, stride=2), ConvBlock(width, width)
        )
        self.down = nn.ModuleDict(
            {str(s): ConvBlock(WIDTHS[s // 2], WIDTHS[s], stride=2) for s in descent[1:]}
        )
        self.up = Sweep(ascent)
        self.down_again = Sweep(descent)
        self.up_again = Sweep(last_ascent)
        self.outputs = nn.ModuleDict({str(s): ConvBlock(WIDTHS[s], channels) for s in strides})

    def forward(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> features (B, channels, H/stride, W/stride), coarsest first."""
        return list(self.ascend(self.descend(image)))

    def descend(self, image: Tensor) -> dict[int, Tensor]:
        """(B, 3, H, W) -> maps by stride: all sweeps but the last."""
        maps = {2: self.stem(image)}
        for stride, layer in self.down.items():
            maps[int(stride)] = layer(maps[int(stride) // 2])
        for sweep in (self.up, self.down_again):
            maps = dict(sweep(maps))
        return maps

    def ascend(self, maps: dict[int, Tensor]) -> Iterator[Tensor]:
        """Yield the features of each level as soon as they are computed."""
        for stride, features in self.up_again(maps):
            if stride in self.strides:  # not the bottleneck
                yield self.outputs[str(stride)](features)


class Merge(nn.Module):
    """Bring the neighbouring map to the size of `skip` and merge the two."""

    def __init__(self, in_channels: int, channels: int, *, up: bool) -> None:
        super().__init__()
        self.resample = ConvBlock(in_channels, channels, stride=2, up=up, norm=False)
        self.fuse = ConvBlock(2 * channels, channels)

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        return self.fuse(torch.cat([self.resample(neighbour), skip], 1))


class Sweep(nn.ModuleDict):
    """Walk along `strides`, merging each map into the next."""

    def __init__(self, strides: list[int]) -> None:
        self.path = list(pairwise(strides))
        super().__init__(
            {
                str(target): Merge(WIDTHS[source], WIDTHS[target], up=target < source)
                for source, target in self.path
            }
        )

    def forward(self, maps: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Yield each stride with its map; the first map is unchanged."""
        stride = self.path[0][0]
        x = maps[stride]
        yield stride, x
        for _, stride in self.path:
            x = self[str(stride)](x, maps[stride])
            yield stride, x


class DiclLevel(nn.Module):
    """One level of the pyramid: warp, match, project, read the flow off, refine."""

    def __init__(
        self, matcher: Matcher, projection: nn.Module | None, context: ContextNet | None
    ) -> None:
        super().__init__()
        self.matcher = matcher
        self.projection = projection or nn.Identity()
        self.context = context

    def forward(
        self, features1: Tensor, features2: Tensor, image1: Tensor, coarse_flow: Tensor | None
    ) -> LevelFlow:
        """(B, C, H, W) features, full-size image, the coarser level's flow at this size."""
        if coarse_flow is not None:
            features2 = self.warp(features2, coarse_flow)
        scores, matched, entropy = self.read_off(self.matcher(features1, features2).squeeze(1))
        if coarse_flow is not None:
            matched = matched + coarse_flow
        refined = matched
        if self.context is not None:
            refined = matched + self.context(matched, entropy, features1, image1)
        kept = {"scores": scores, "start": coarse_flow} if self.training else {}
        return LevelFlow(matched, refined, entropy, **kept)

    warp = staticmethod(warp)

    def read_off(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, U, V, H, W) -> projected scores, displacement (B, 2, H, W), entropy (B, 1, H, W)."""
        scores = self.projection(scores)
        probability = displacement_probability(scores)
        return scores, expected_displacement(probability), normalized_entropy(probability)


class DiclFlow(FlowNetwork, host="dicl"):
    """The whole network."""

    @classmethod
    def assemble(cls, config: ModelConfig) -> "DiclFlow":
        """See `FlowNetwork`."""
        features = FeaturePyramid(config.strides, config.feature_channels)
        return cls(config, features, *(_build_level(config, level) for level in config.levels))

    def flow_from_pairs(
        self, pairs: Iterable[Pair], image1: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """See `FlowNetwork`."""
        self._check_initial(image1, initial)
        flows: list[LevelFlow] = []
        coarse_flow = None  # the coarsest level starts from no motion
        for (stride, level), (features1, features2) in zip(self.levels.items(), pairs, strict=True):
            if not self.runs(int(stride), initial):
                continue
            size = size_of(features1)
            if flows:
                coarse_flow = self._enlarge(flows[-1].refined, size).detach()
            elif initial is not None:
                coarse_flow = upsample_flow(initial.flow, size).detach()
            flows.append(level(features1, features2, image1, coarse_flow))
        return flows

    def _enlarge(self, refined: Tensor, size: tuple[int, int]) -> Tensor:
        """The flow of a level for the next one, which has half the stride."""
        return resize(2 * refined, size)


def _build_level(config: ModelConfig, level: LevelConfig) -> DiclLevel:
    channels, projection, context = config.feature_channels, None, None
    matcher = build_matcher(config.matcher or "dicl", channels, level.radius)
    if config.projection:
        projection = DisplacementProjection(level.radius)
    if config.context:
        context = ContextNet(channels, level.context, level.context_scale)
    return DiclLevel(matcher, projection, context)
