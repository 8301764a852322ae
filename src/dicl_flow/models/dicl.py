"""DICL-Flow: coarse to fine, match, project, read off, refine."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ..config import LevelConfig, ModelConfig
from ..matching import DisplacementProjection, Matcher, build_matcher
from ..nn import ContextNet, FeaturePyramid, initialize
from ..ops import (
    displacement_probability,
    expected_displacement,
    normalized_entropy,
    upsample_flow,
    warp,
)
from .network import FlowNetwork, LevelFlow


class DiclLevel(nn.Module):
    """One level of the pyramid: warp, match, project, read off, refine."""

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
        scores = self.matcher(features1, features2).squeeze(1)  # (B, U, V, H, W)
        probability = displacement_probability(self.projection(scores))
        matched = expected_displacement(probability)
        if coarse_flow is not None:
            matched = matched + coarse_flow
        entropy = normalized_entropy(probability)
        refined = matched
        if self.context is not None:
            refined = matched + self.context(matched, entropy, features1, image1)
        return LevelFlow(matched, refined, entropy)


class DiclFlow(FlowNetwork):
    """The whole network."""

    def __init__(
        self, config: ModelConfig, features: FeaturePyramid, levels: list[DiclLevel]
    ) -> None:
        super().__init__(config)
        self.features = features
        self.levels = nn.ModuleDict(
            {str(stride): level for stride, level in zip(config.strides, levels, strict=True)}
        )

    def forward(self, image1: Tensor, image2: Tensor) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        return self.flow_from_features(self.features(image1), self.features(image2), image1)

    def both_ways(self, image1: Tensor, image2: Tensor) -> tuple[list[LevelFlow], list[LevelFlow]]:
        """The flow from 1 to 2 and that from 2 to 1; features are computed once for both."""
        self._check(image1, image2)
        pyramids = [features.chunk(2) for features in self.features(torch.cat([image1, image2]))]
        pyramid1, pyramid2 = zip(*pyramids, strict=True)
        there = self.flow_from_features(pyramid1, pyramid2, image1)
        return there, self.flow_from_features(pyramid2, pyramid1, image2)

    def flow_from_features(
        self, pyramid1: Sequence[Tensor], pyramid2: Sequence[Tensor], image1: Tensor
    ) -> list[LevelFlow]:
        """Match two feature pyramids, coarsest first; `image1` guides the context nets."""
        return self.flow_from_pairs(zip(pyramid1, pyramid2, strict=True), image1)

    def flow_from_pairs(
        self, pairs: Iterable[tuple[Tensor, Tensor]], image1: Tensor
    ) -> list[LevelFlow]:
        """Do the same with the features of both images level by level, as they come."""
        flows: list[LevelFlow] = []
        coarse_flow = None  # the coarsest level starts from no motion
        for level, (features1, features2) in zip(self.levels.values(), pairs, strict=True):
            if flows:
                size = (features1.shape[-2], features1.shape[-1])
                coarse_flow = upsample_flow(flows[-1].refined, size).detach()
            flows.append(level(features1, features2, image1, coarse_flow))
        return flows


def build_dicl(config: ModelConfig) -> DiclFlow:
    """Assemble and initialise the network that `config` describes."""
    features = FeaturePyramid(config.strides, config.feature_channels)
    model = DiclFlow(config, features, [_build_level(config, level) for level in config.levels])
    initialize(model)
    return model


def _build_level(config: ModelConfig, level: LevelConfig) -> DiclLevel:
    return DiclLevel(
        build_matcher(config.matcher or "dicl", config.feature_channels, level.radius),
        DisplacementProjection(level.radius) if config.projection else None,
        ContextNet(config.feature_channels, level.context, level.context_scale)
        if config.context
        else None,
    )
