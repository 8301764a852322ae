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
    size_of,
    truncate_scores,
    upsample_pixels,
    warp_strictly_inside,
)
from .blocks import SLOPE, LeakyBlock, dilated_net
from .matching import ChannelwiseMatcher, Matcher, build_matcher
from .network import FlowNetwork, InitialFlow, LevelFlow, Pair

NUM_HYPOTHESES = {64: 16, 32: 16, 16: 16, 8: 16, 4: 12}  # of the level at each stride
WINDOW_RADIUS = 3  # around the peak: 7x7 displacements
_FINEST = 4  # the stride at which volumes are filtered at lower resolutions of the image, too
_DOWN = {4: 32, 8: 64, 16: 128, 32: 128, 64: 128}  # channels of features, going down
_UP = {4: 64, 8: 64, 16: 128, 32: 128}  # and going up
_CARRIED = {4: 32, 8: 64, 16: 64, 32: 64}  # of these, from the coarser map


class PspPyramid(nn.Module):
    """Features at each of `strides`, coarsest first; `widths` are their channels."""

    def __init__(self, strides: tuple[int, ...]) -> None:
        super().__init__()
        coarsest = strides[0]
        self.widths = {coarsest: _DOWN[coarsest], **{s: _UP[s] for s in strides[1:]}}
        self.stem = nn.Sequential(
            LeakyBlock(3, 16, stride=2), LeakyBlock(16, 16), LeakyBlock(16, 32)
        )
        self.down = nn.ModuleDict(
            {str(s): ResidualBlock(_DOWN[s // 2], _DOWN[s]) for s in _DOWN if 4 < s <= coarsest}
        )
        self.pooling = PyramidPooling(_DOWN[coarsest])
        merges = {
            str(s): SkipMerge(self.widths[2 * s], _CARRIED[s], _DOWN[s], _UP[s])
            for s in strides[1:]
        }
        self.up = nn.ModuleDict(merges)

    def forward(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> features (B, C, H/stride, W/stride), coarsest first."""
        x = F.max_pool2d(self.stem(image), 3, 2, 1)
        skips = {4: x}
        for stride, block in self.down.items():
            x = skips[int(stride)] = block(x)
        maps = [self.pooling(x)]
        for stride, merge in self.up.items():
            maps.append(merge(maps[-1], skips[int(stride)]))
        return maps


class ResidualBlock(nn.Module):
    """Two convolutions with a 1x1 shortcut; the size is halved."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.first = LeakyBlock(in_channels, channels, stride=2)
        self.second = _conv_norm(channels, channels, 3)
        self.shortcut = _conv_norm(in_channels, channels, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, C, H/2, W/2)."""
        return F.leaky_relu(self.second(self.first(x)) + self.shortcut(x), SLOPE)


class PyramidPooling(nn.Module):
    """Add means over parts of the frame: `num_paths` grids, from many cells to a single one."""

    def __init__(self, channels: int, num_paths: int = 3) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            LeakyBlock(channels, channels, kernel=1) for _ in range(num_paths)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        height, width = x.shape[-2:]
        most, last = max(min(height, width) // 2, 1), len(self.paths) - 1
        total = x
        for index, path in enumerate(self.paths):
            cells = 1 + (most - 1) * (last - index) // last
            means = path(F.avg_pool2d(x, (height // cells, width // cells)))
            total = total + upsample_pixels(means, (height, width)) / len(self.paths)
        return F.leaky_relu(total / 2, SLOPE)


class SkipMerge(nn.Module):
    """Bring the coarser map to the size of `skip` and merge the two."""

    def __init__(self, coarse: int, carried: int, skip: int, channels: int) -> None:
        super().__init__()
        self.carry = LeakyBlock(coarse, carried)
        self.fuse = LeakyBlock(skip + carried, channels)

    def forward(self, coarse: Tensor, skip: Tensor) -> Tensor:
        """(B, coarse, h, w), (B, skip, H, W) -> (B, C, H, W)."""
        enlarged = upsample_pixels(coarse, size_of(skip))
        return self.fuse(torch.cat([skip, self.carry(enlarged)], 1))


def _conv_norm(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels))


class SeparableConv(nn.Module):
    """A 4-D convolution, `k` wide, as two 2-D ones with a ReLU between; each has a norm or a bias.

    `stride` is for the displacements, `space_stride` for the pixels.
    """

    def __init__(
        self,
        channels: int,
        k: int = 3,
        stride: int = 1,
        space_stride: int = 1,
        *,
        norm: bool = True,
    ) -> None:
        super().__init__()
        s, p = space_stride, k // 2
        self.over_displacements = nn.Conv3d(
            channels, channels, (k, k, 1), (stride, stride, 1), (p, p, 0), bias=not norm
        )
        self.over_space = nn.Conv3d(
            channels, channels, (1, k, k), (1, s, s), (0, p, p), bias=not norm
        )
        self.norm1 = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(channels) if norm else nn.Identity()

    def forward(self, volume: Tensor) -> Tensor:
        """(B, C, U, V, H, W) -> (B, C, U', V', H', W')."""
        space = volume.shape[-2:]
        x = self.over_displacements(volume.flatten(4))  # (B, C, U', V', H·W)
        displacements = x.shape[2:4]
        x = torch.relu(_normed(x, self.norm1))
        x = self.over_space(x.flatten(2, 3).unflatten(-1, space))  # (B, C, U'·V', H', W')
        return _normed(x, self.norm2).unflatten(2, displacements)


class PointwiseConv(nn.Module):
    """Mixes the channels of each cell, then a norm; a stride leaves displacements out."""

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, channels, 1, (stride, stride, 1), bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, volume: Tensor) -> Tensor:
        """(B, in, U, V, H, W) -> (B, C, U', V', H, W)."""
        x = _normed(self.conv(volume.flatten(4)), self.norm)
        return x.unflatten(-1, volume.shape[-2:])


class VolumeBlock(nn.Module):
    """Two separable convolutions with a shortcut; strides are also of pixels with `space`."""

    def __init__(self, channels: int, stride: int = 1, *, space: bool = False) -> None:
        super().__init__()
        strides = (stride, stride if space else 1)
        self.first = SeparableConv(channels, 3, *strides)
        self.second = SeparableConv(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            wide = SeparableConv(channels, 1, *strides) if space else None
            self.shortcut = wide or PointwiseConv(channels, channels, stride)

    def forward(self, volume: Tensor) -> Tensor:
        """(B, C, U, V, H, W) -> (B, C, U', V', H', W')."""
        changed = self.second(torch.relu(self.first(volume)))
        return torch.relu(self.shortcut(volume) + changed)


class VolumeFilter(nn.Module):
    """A U-Net over displacements, with `space` also over pixels: twice down, twice up."""

    def __init__(self, in_channels: int, channels: int, *, space: bool) -> None:
        super().__init__()
        self.project = PointwiseConv(in_channels, channels)
        self.down = nn.ModuleList(VolumeBlock(channels, 2, space=space) for _ in range(2))
        self.bottom = VolumeBlock(channels)
        self.up = nn.ModuleList(VolumeBlock(channels) for _ in range(2))

    def forward(self, volume: Tensor) -> Tensor:
        """(B, in, U, V, H, W) -> (B, C, U, V, H, W)."""
        skips = [torch.relu(self.project(volume))]
        for block in self.down:
            skips.append(block(skips[-1]))
        x = self.bottom(skips.pop())
        for block in self.up:
            skip = skips.pop()
            x = block(skip + resize_volume(x, skip.shape[2:]))
        return x


def resize_volume(volume: Tensor, size: torch.Size) -> Tensor:
    """Interpolate (B, C, U, V, H, W) to the last four sides `size`, cells being areas."""
    *displacements, height, width = size
    space = volume.shape[-2:]
    x = volume.flatten(4)
    x = F.interpolate(x, [*displacements, x.shape[-1]], mode="trilinear", align_corners=False)
    if space != (height, width):
        x = x.flatten(2, 3).unflatten(-1, space)  # (B, C, U·V, h, w)
        x = F.interpolate(x, [x.shape[2], height, width], mode="trilinear", align_corners=False)
    return x.reshape(*volume.shape[:2], *size)


def _normed(x: Tensor, norm: nn.Module) -> Tensor:
    """Apply a 2-D batch norm to a 5-D tensor: the statistics are the same as those of a 3-D one."""
    return norm(x.flatten(3)).unflatten(-1, x.shape[3:])


class Hypotheses(NamedTuple):
    """N candidate flows for each pixel: those of a level, then those of all coarser ones."""

    flows: Tensor  # (B, N, 2, H, W) in pixels of the level
    entropies: Tensor  # (B, N, 2, H, W): around the peak, and of all displacements, 0 … 1

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
        hypotheses = read_hypotheses(self.scores(self.filter(volume)))
        if coarse_flow is not None:
            hypotheses = hypotheses._replace(flows=hypotheses.flows + coarse_flow[:, None])
        matched = refined = hypotheses.flows.mean(1)
        if coarse is not None:
            pairs = zip(hypotheses, coarse, strict=True)
            hypotheses = Hypotheses(*(torch.cat(pair, 1) for pair in pairs))
        # hypotheses are without gradients: (B, 4N + C, H, W)
        parts = [x.detach().flatten(1, 2).to(features1.dtype) for x in hypotheses]
        known = torch.cat([*parts, features1], 1)
        if self.context is not None:
            refined = weigh(hypotheses.flows, self.context(known))
        head = self.out_of_range if self.training else None
        logits = None if head is None else at_least_float32(head(known))
        return LevelFlow(
            matched, refined, hypotheses.entropies.mean((1, 2))[:, None], logits
        ), hypotheses


class Vcn(FlowNetwork, host="vcn"):
    """The whole network."""

    training_only = ".out_of_range."

    @classmethod
    def assemble(cls, config: ModelConfig) -> "Vcn":
        """See `FlowNetwork`."""
        features = PspPyramid(config.strides)
        levels, total = [], 0
        for level in config.levels:
            total += NUM_HYPOTHESES[level.stride]
            levels.append(_build_level(config, level, features.widths[level.stride], total))
        return cls(config, features, *levels)

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
                size = size_of(features1)
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


def _build_level(config: ModelConfig, level: LevelConfig, channels: int, total: int) -> VcnLevel:
    """`total` counts the hypotheses of this level and of all coarser ones."""
    number = NUM_HYPOTHESES[level.stride]
    matcher = build_matcher(config.matcher, channels, level.radius, ChannelwiseMatcher)
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
