"""VCN: coarse to fine, warp, match channel by channel, filter the 4-D volume, weigh hypotheses."""

from collections.abc import Iterable
from math import log
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import LevelConfig, ModelConfig
from ..ops import (
    at_least_float32,
    displacement_probability,
    expected_displacement,
    normalized_entropy,
    resize_flow_pixels,
    truncate_scores,
    upsample_pixels,
    warp_strictly_inside,
)
from .blocks import SLOPE, dilated_net
from .matching import ChannelwiseMatcher, Matcher, build_matcher
from .network import FlowNetwork, InitialFlow, LevelFlow, Pair
from .pyramid import PspPyramid
from .volume import SeparableConv, VolumeFilter

NUM_HYPOTHESES = {64: 16, 32: 16, 16: 16, 8: 16, 4: 12}  # of the level at each stride
WINDOW_RADIUS = 3  # around the peak: 7x7 displacements
_FINEST = 4  # the stride at which volumes are filtered at lower resolutions of the image, too


class Hypotheses(NamedTuple):
    """N candidate flows for each pixel: those of a level, then those of all coarser ones."""

    flows: Tensor
    """(B, N, 2, H, W) in pixels of the level."""
    entropies: Tensor
    """(B, N, 2, H, W): around the peak, and of all displacements, 0 … 1."""

    def upsample(self, size: tuple[int, int]) -> "Hypotheses":
        """Bring them to the size of a finer level; without gradients."""
        batch = len(self.flows)
        flows = resize_flow_pixels(self.flows.detach().flatten(0, 1), size)
        entropies = upsample_pixels(self.entropies.detach().flatten(0, 1), size)
        return Hypotheses(*(x.unflatten(0, (batch, -1)) for x in (flows, entropies)))


class VcnLevel(nn.Module):
    """One level: warp, match, filter, read hypotheses off, weigh them."""

    def __init__(
        self,
        matcher: Matcher,
        volume_filter: VolumeFilter,
        scores: SeparableConv,
        context: nn.Sequential | None,
        out_of_range: nn.Sequential | None,
    ) -> None:
        super().__init__()
        self.matcher, self.filter, self.scores = matcher, volume_filter, scores
        self.context, self.out_of_range = context, out_of_range

    def forward(
        self,
        features1: Tensor,
        features2: Tensor,
        coarse_flow: Tensor | None,
        coarse: Hypotheses | None,
    ) -> tuple[LevelFlow, Hypotheses]:
        """(B, C, H, W) features; flow and hypotheses of the coarser level at this size."""
        unit1, unit2 = (F.normalize(f, dim=1).to(f.dtype) for f in (features1, features2))
        if coarse_flow is not None:
            unit2 = warp_strictly_inside(unit2, coarse_flow)
        volume = F.leaky_relu(self.matcher(unit1, unit2), SLOPE)  # (B, K, U, V, H, W)
        found = read_hypotheses(self.scores(self.filter(volume)))
        if coarse_flow is not None:
            found = found._replace(flows=found.flows + coarse_flow[:, None])
        matched = refined = found.flows.mean(1)
        if coarse is not None:
            pairs = zip(found, coarse, strict=True)
            found = Hypotheses(*(torch.cat(pair, 1) for pair in pairs))
        known = self._known(found, features1)
        if self.context is not None:
            refined = weigh(found.flows, self.context(known))
        head = self.out_of_range if self.training else None
        logits = None if head is None else at_least_float32(head(known))
        return LevelFlow(matched, refined, found.entropies.mean((1, 2))[:, None], logits), found

    def _known(self, hypotheses: Hypotheses, features: Tensor) -> Tensor:
        """The input of the context net (B, 4N + C, H, W); hypotheses are without gradients."""
        parts = [x.detach().flatten(1, 2).to(features.dtype) for x in hypotheses]
        return torch.cat([*parts, features], 1)


class Vcn(FlowNetwork):
    """The whole network."""

    training_only = ".out_of_range."

    def forward(
        self, image1: Tensor, image2: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        self._check(image1, image2)
        both = self.features(torch.cat([image1, image2]))  # norms see both images at once
        return self.flow_from_pairs(self._halves(both), image1, initial)

    def flow_from_pairs(
        self, pairs: Iterable[Pair], image1: Tensor, initial: InitialFlow | None = None
    ) -> list[LevelFlow]:
        """See `FlowNetwork`."""
        self._check_initial(image1, initial)  # refuses any
        flows: list[LevelFlow] = []
        coarse_flow = hypotheses = None
        for level, (features1, features2) in zip(self.levels.values(), pairs, strict=True):
            if flows and hypotheses is not None:
                size = (features1.shape[-2], features1.shape[-1])
                coarse_flow = self.upsample(flows[-1].refined, size)
                hypotheses = hypotheses.upsample(size)
            flow, hypotheses = level(features1, features2, coarse_flow, hypotheses)
            flows.append(flow)
        return flows

    def upsample(self, flow: Tensor, size: tuple[int, int]) -> Tensor:
        """Bring the flow of a level to `size`; pixels are areas here."""
        return resize_flow_pixels(flow, size)


def read_hypotheses(scores: Tensor) -> Hypotheses:
    """(B, N, U, V, H, W) scores -> one flow for each channel, read around its peak."""
    batch, _, num_u, num_v = scores.shape[:4]
    scores = at_least_float32(scores.flatten(0, 1))
    local = displacement_probability(truncate_scores(scores, WINDOW_RADIUS))
    everywhere = displacement_probability(scores.detach())
    num_seen = min(num_u * num_v, (2 * WINDOW_RADIUS + 1) ** 2)
    around = normalized_entropy(local.detach()) * (log(num_u * num_v) / log(num_seen))
    entropies = torch.cat([around, normalized_entropy(everywhere)], 1)
    read = expected_displacement(local), entropies
    return Hypotheses(*(x.unflatten(0, (batch, -1)) for x in read))


def weigh(flows: Tensor, votes: Tensor) -> Tensor:
    """Mean of (B, N, 2, H, W) flows by a softmax of (B, 2N, H, W) votes, x and y separately."""
    weights = at_least_float32(votes).unflatten(1, flows.shape[1:3]).softmax(1)
    return (flows * weights).sum(1)


def assemble_vcn(config: ModelConfig) -> Vcn:
    """Assemble the network that `config` describes."""
    features = PspPyramid(config.strides)
    levels, total = [], 0
    for level in config.levels:
        total += NUM_HYPOTHESES[level.stride]
        levels.append(_build_level(config, level, features.widths[level.stride], total))
    return Vcn(config, features, levels)


def _build_level(config: ModelConfig, level: LevelConfig, channels: int, total: int) -> VcnLevel:
    """`total` counts the hypotheses of this level and of all coarser ones."""
    number = NUM_HYPOTHESES[level.stride]
    matcher: Matcher = (
        build_matcher(config.matcher, channels, level.radius)
        if config.matcher
        else ChannelwiseMatcher(channels, level.radius)
    )
    volume_filter = VolumeFilter(matcher.out_channels, number, space=level.stride == _FINEST)
    context, out_of_range = (
        dilated_net(channels + 4 * total, level.context, outputs, norm=True)
        if config.context
        else None
        for outputs in (2 * total, 1)
    )
    return VcnLevel(
        matcher, volume_filter, SeparableConv(number, norm=False), context, out_of_range
    )
