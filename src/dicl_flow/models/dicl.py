"""DICL-Flow: coarse to fine; match, project, read the flow off, refine."""

from collections.abc import Iterable

from torch import Tensor, nn

from ..config import LevelConfig, ModelConfig
from ..ops import (
    displacement_probability,
    expected_displacement,
    normalized_entropy,
    resize,
    upsample_flow,
    warp,
)
from .blocks import ContextNet
from .matching import DisplacementProjection, Matcher, build_matcher
from .network import FlowNetwork, InitialFlow, LevelFlow, Pair
from .pyramid import FeaturePyramid

OWN_MATCHER = "dicl"


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
            features2 = warp(features2, coarse_flow)
        scores, matched, entropy = self.read_off(self.matcher(features1, features2).squeeze(1))
        if coarse_flow is not None:
            matched = matched + coarse_flow
        refined = matched
        if self.context is not None:
            refined = matched + self.context(matched, entropy, features1, image1)
        if not self.training:
            return LevelFlow(matched, refined, entropy)
        return LevelFlow(matched, refined, entropy, scores=scores, start=coarse_flow)

    def read_off(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, U, V, H, W) -> projected scores, displacement (B, 2, H, W), entropy (B, 1, H, W)."""
        scores = self.projection(scores)
        probability = displacement_probability(scores)
        return scores, expected_displacement(probability), normalized_entropy(probability)


class DiclFlow(FlowNetwork):
    """The whole network."""

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
            size = (features1.shape[-2], features1.shape[-1])
            if flows:
                coarse_flow = self._enlarge(flows[-1].refined, size).detach()
            elif initial is not None:
                coarse_flow = upsample_flow(initial.flow, size).detach()
            flows.append(level(features1, features2, image1, coarse_flow))
        return flows

    def _enlarge(self, refined: Tensor, size: tuple[int, int]) -> Tensor:
        """The flow of a level for the next one, which has half the stride."""
        return resize(2 * refined, size)


def assemble_dicl(config: ModelConfig) -> DiclFlow:
    """Assemble the network that `config` describes."""
    features = FeaturePyramid(config.strides, config.feature_channels)
    return DiclFlow(config, features, [_build_level(config, level) for level in config.levels])


def _build_level(config: ModelConfig, level: LevelConfig) -> DiclLevel:
    return DiclLevel(
        build_matcher(config.matcher or OWN_MATCHER, config.feature_channels, level.radius),
        DisplacementProjection(level.radius) if config.projection else None,
        ContextNet(config.feature_channels, level.context, level.context_scale)
        if config.context
        else None,
    )
