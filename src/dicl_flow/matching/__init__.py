"""Matchers: ways to compare a pixel of frame 1 with its candidates in frame 2.

All follow one contract: `matcher(features1, features2)` gives scores
(B, K, U, V, H, W), higher is better, K = `matcher.out_channels`; U is horizontal and V
vertical, both from -`radius` to `radius`. Hosts rely on nothing else.
"""

from .matchers import (
    PAIRWISE_NETS,
    ChannelwiseMatcher,
    CorrelationMatcher,
    CosineMatcher,
    DisplacementProjection,
    DotMatcher,
    Matcher,
    MatchingNet,
    PairwiseMatcher,
    build_matcher,
)

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
