"""Matchers: ways to compare a pixel of frame 1 with its candidates in frame 2.

All follow one contract: `matcher(features1, features2)` gives scores
(B, K, U, V, H, W), higher is better, K = `matcher.out_channels`; U is horizontal and V
vertical, both from -`radius` to `radius`. Hosts rely on nothing else.
"""

from collections.abc import Callable

from torch import nn

from ..errors import unknown_name
from .contract import Matcher
from .matching_net import MatchingNet
from .pairwise import PairwiseMatcher, mlp_net, reduced_net
from .projection import DisplacementProjection
from .similarity import ChannelwiseMatcher, CorrelationMatcher, CosineMatcher, DotMatcher

_METRICS: dict[str, Callable[[int, int], Matcher]] = {"dot": DotMatcher, "cosine": CosineMatcher}
PAIRWISE_NETS: dict[str, Callable[[int], nn.Sequential]] = {
    "mlp": mlp_net,
    "reduced": reduced_net,
    "dicl": MatchingNet,
}


def build_matcher(name: str, channels: int, radius: int) -> Matcher:
    """Return the matcher `name` for features of `channels` and displacements up to `radius`."""
    if name in PAIRWISE_NETS:
        return PairwiseMatcher(PAIRWISE_NETS[name](2 * channels), radius)
    if name not in _METRICS:
        raise unknown_name("matcher", name, [*_METRICS, *PAIRWISE_NETS])
    return _METRICS[name](channels, radius)


__all__ = [
    "PAIRWISE_NETS",
    "ChannelwiseMatcher",
    "CorrelationMatcher",
    "CosineMatcher",
    "DisplacementProjection",
    "DotMatcher",
    "Matcher",
    "MatchingNet",
    "PairwiseMatcher",
    "build_matcher",
]
