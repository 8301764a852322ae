"""The heart: ways to compare a pixel of frame 1 with its hypotheses in frame 2.

Every matcher keeps one contract: `matcher(features1, features2)` gives scores
(B, K, U, V, H, W), higher is better, K = `matcher.out_channels`; U is horizontal and V
vertical, both from -`radius` to `radius`. Hosts rely on nothing else.
"""

from collections.abc import Callable

from ..errors import unknown_name
from .contract import Matcher
from .pairwise import PairwiseMatcher, matching_net, mlp_net, reduced_net
from .projection import DisplacementProjection
from .similarity import ChannelwiseMatcher, CorrelationMatcher, CosineMatcher, DotMatcher

_BUILDERS: dict[str, Callable[[int, int], Matcher]] = {
    "dot": DotMatcher,
    "cosine": CosineMatcher,
    "mlp": lambda channels, radius: PairwiseMatcher(mlp_net(2 * channels), radius),
    "reduced": lambda channels, radius: PairwiseMatcher(reduced_net(2 * channels), radius),
    "dicl": lambda channels, radius: PairwiseMatcher(matching_net(2 * channels), radius),
}


def build_matcher(name: str, channels: int, radius: int) -> Matcher:
    """Return the matcher `name` for features of `channels` and displacements up to `radius`."""
    if name not in _BUILDERS:
        raise unknown_name("matcher", name, _BUILDERS)
    return _BUILDERS[name](channels, radius)


__all__ = [
    "ChannelwiseMatcher",
    "CorrelationMatcher",
    "CosineMatcher",
    "DisplacementProjection",
    "DotMatcher",
    "Matcher",
    "PairwiseMatcher",
    "build_matcher",
]
