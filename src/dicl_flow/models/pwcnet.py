"""PWC-Net: coarse to fine, warp, match, decode the volume with dense connections."""

from itertools import accumulate
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import LevelConfig, ModelConfig
from ..ops import displacement_probability, normalized_entropy, warp
from .blocks import SLOPE, LeakyBlock, apply_in_float32, dilated_net, initialize
from .matching import CorrelationMatcher, Matcher, build_matcher
from .network import FlowNetwork, LevelFlow

WIDTHS = {2: 16, 4: 32, 8: 64, 16: 96, 32: 128, 64: 196}  # channels at each stride
DENSE_WIDTHS = (128, 128, 96, 64, 32)
UNIT = 20  # input pixels that a predicted 1 stands for
FEATURE_DEVIATION = 3  # standard deviation of each feature at the start
HEAD_GAIN = 0.01  # of the layers that predict flow, at the start
_CARRIED = 2  # channels of features that a level passes on, in addition to its flow


class StridedPyramid(nn.Module):
    """Three convolutions at each stride, the first of them halving the size."""

    def __init__(self, strides: tuple[int, ...]) -> None:
        super().__init__()
        self.strides = strides
        descent = [stride for stride in WIDTHS if stride <= strides[0]]
        self.steps = nn.ModuleDict({str(stride): _pyramid_step(stride) for stride in descent})

    def forward(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> features (B, C, H/stride, W/stride), coarsest first."""
        maps: dict[int, Tensor] = {}
        for stride, step in self.steps.items():
            image = maps[int(stride)] = step(image)
        return [maps[stride] for stride in self.strides]


class DenseDecoder(nn.Module):
    """Every layer sees the outputs of all before it, and the input."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        *widths, self.out_channels = accumulate(DENSE_WIDTHS, initial=in_channels)
        self.layers = nn.ModuleList(
            LeakyBlock(width, new, norm=False, bias=True)
            for width, new in zip(widths, DENSE_WIDTHS, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, in + 448, H, W)."""
        for layer in self.layers:
            x = torch.cat([layer(x), x], 1)
        return x


class Carried(NamedTuple):
    """What a level passes on to the next finer one, at its size."""

    flow: Tensor  # (B, 2, H, W) in units of `UNIT` input pixels
    features: Tensor  # (B, 2, H, W)


class PwcLevel(nn.Module):
    """One level: warp, match, decode, refine; the finest passes nothing on."""

    def __init__(
        self,
        matcher: Matcher,
        decoder: DenseDecoder,
        context: nn.Sequential | None,
        stride: int,
        *,
        is_finest: bool,
    ) -> None:
        super().__init__()
        width = decoder.out_channels
        self.scale = UNIT / stride  # pixels of this level
        self.matcher, self.decoder, self.context = matcher, decoder, context
        self.flow = nn.Conv2d(width, 2, 3, padding=1)
        self.up_flow = None if is_finest else nn.ConvTranspose2d(2, 2, 4, 2, 1)
        self.up_features = None if is_finest else nn.ConvTranspose2d(width, _CARRIED, 4, 2, 1)

    def forward(
        self, features1: Tensor, features2: Tensor, coarse: Carried | None
    ) -> tuple[LevelFlow, Carried | None]:
        """(B, C, H, W) features, and what the coarser level passed on."""
        if coarse is not None:
            features2 = warp(features2, self.scale * coarse.flow)
        scores = self.matcher(features1, features2)  # (B, K, U, V, H, W)
        parts = [F.leaky_relu(scores, SLOPE).flatten(1, 3)]
        if coarse is not None:
            parts += [features1, *coarse]
        hidden = self.decoder(torch.cat([part.to(features1.dtype) for part in parts], 1))
        matched = refined = apply_in_float32(self.flow, hidden)
        if self.context is not None:
            refined = matched + self.context(hidden)
        entropy = normalized_entropy(displacement_probability(scores.detach().mean(1)))
        level = LevelFlow(self.scale * matched, self.scale * refined, entropy)
        if self.up_flow is None or self.up_features is None:
            return level, None
        return level, Carried(apply_in_float32(self.up_flow, refined), self.up_features(hidden))


class PwcNet(FlowNetwork, host="pwcnet"):
    """The whole network."""

    @classmethod
    def assemble(cls, config: ModelConfig) -> "PwcNet":
        """See `FlowNetwork`."""
        pyramid = StridedPyramid(config.strides)
        return cls(config, pyramid, *(_build_level(config, level) for level in config.levels))

    def initialize(self) -> None:
        """See `FlowNetwork`."""
        initialize(self, "fan_in")  # a flow of two channels from hundreds would be huge otherwise
        levels = [cast(PwcLevel, level) for level in self.levels.values()]
        # with norms in the matcher, the scale of its scores does not depend on the features
        if not any(isinstance(module, nn.BatchNorm2d) for module in levels[0].matcher.modules()):
            _scale_features(cast(StridedPyramid, self.features))
            for level in levels:
                _scale_heads(level)


@torch.no_grad()
def _scale_features(pyramid: StridedPyramid) -> None:
    """Make every feature start with mean zero and `FEATURE_DEVIATION`, at every stride.

    With Kaiming's rule alone, training shrinks them to nothing (docs/decisions/0006).
    """
    x = _clouds()
    for layer in (module for module in pyramid.modules() if isinstance(module, LeakyBlock)):
        weight, bias = layer.parameters()
        deviation, mean = torch.std_mean(layer[0](x), (0, 2, 3))
        gain = FEATURE_DEVIATION / deviation
        weight.mul_(gain[:, None, None, None])
        bias.copy_(-gain * mean)
        x = layer(x)


@torch.no_grad()
def _scale_heads(level: PwcLevel) -> None:
    """Make a level start near "no motion": unlearning random flows would shrink its features."""
    refining = None if level.context is None else level.context[-1]
    for head in (level.flow, refining, level.up_features):
        if head is not None:
            next(head.parameters()).mul_(HEAD_GAIN)  # the weight


def _clouds(count: int = 8, side: int = 256) -> Tensor:
    """(N, 3, S, S) in [-1, 1]: noise of equal strength in each octave, as in photographs."""
    clouds = torch.zeros(count, 3, side, side)
    for cells in (1, 2, 4, 8, 16, 32, 64):
        octave = torch.randn(count, 3, cells, cells)
        clouds += F.interpolate(octave, (side, side), mode="bilinear")
    return (0.5 * clouds / clouds.std()).clamp(-1, 1)


def _build_level(config: ModelConfig, level: LevelConfig) -> PwcLevel:
    channels = WIDTHS[level.stride]
    matcher = build_matcher(config.matcher, channels, level.radius, CorrelationMatcher)
    in_channels = matcher.out_channels * level.num_hypotheses
    if level is not config.levels[0]:  # the coarsest sees its volume only
        in_channels += channels + 2 + _CARRIED
    decoder = DenseDecoder(in_channels)
    context = None
    if config.context and level.context:
        context = dilated_net(decoder.out_channels, level.context, 2, norm=False)
    finest = level is config.levels[-1]
    return PwcLevel(matcher, decoder, context, level.stride, is_finest=finest)


def _pyramid_step(stride: int) -> nn.Sequential:
    width = WIDTHS[stride]
    return nn.Sequential(
        LeakyBlock(WIDTHS.get(stride // 2, 3), width, stride=2, norm=False, bias=True),
        *[LeakyBlock(width, width, norm=False, bias=True) for _ in range(2)],
    )
